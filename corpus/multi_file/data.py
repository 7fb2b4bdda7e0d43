"""Images of blobs on a noisy background (JPEG), with the blobs as masks (PNG)."""

import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from torch.utils.data import DataLoader, Dataset

from transforms.augment import ColorJitter, Compose, RandomFlip, RandomScaledCrop, Resize, ToTensor


def make_sample(index: int, size: int = 320):
    """Image and mask number `index`: always the same ones."""
    rng = random.Random(index)
    mask = Image.new("L", (size, size))
    pen = ImageDraw.Draw(mask)
    for _ in range(rng.randint(2, 5)):
        x, y = rng.randint(0, size), rng.randint(0, size)
        w, h = rng.randint(size // 10, size // 4), rng.randint(size // 10, size // 4)
        pen.ellipse((x - w, y - h, x + w, y + h), fill=255)
    noise = np.random.default_rng(index).integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
    background = Image.fromarray(noise).resize((size, size), Image.BICUBIC)
    tissue = Image.new("RGB", (size, size), (rng.randint(150, 220), rng.randint(40, 90), rng.randint(90, 150)))
    blobs = Image.blend(background, tissue, 0.6)
    return Image.composite(blobs, background, mask.filter(ImageFilter.GaussianBlur(2))), mask


def prepare(root: Path, count: int) -> None:
    """Write the samples that are not there yet."""
    (root / "images").mkdir(parents=True, exist_ok=True)
    (root / "masks").mkdir(exist_ok=True)
    for index in range(count):
        if (root / "masks" / f"{index:05d}.png").exists():
            continue
        image, mask = make_sample(index)
        image.save(root / "images" / f"{index:05d}.jpg", quality=90)
        mask.save(root / "masks" / f"{index:05d}.png")  # last: says that both are there


class BlobDataset(Dataset):
    def __init__(self, root: Path, indices: range, augment):
        self.root = root
        self.indices = indices
        self.augment = augment

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, i):
        name = f"{self.indices[i]:05d}"
        image = Image.open(self.root / "images" / f"{name}.jpg").convert("RGB")
        mask = Image.open(self.root / "masks" / f"{name}.png").convert("L")
        image, mask = self.augment(image, mask)
        return {"image": image, "mask": mask}


def make_loaders(cfg):
    """Training and validation loader; the last fifth of the samples is for validation."""
    root = Path(cfg.data)
    prepare(root, cfg.samples)
    split = cfg.samples * 4 // 5
    train_augment = Compose([RandomScaledCrop(cfg.size), RandomFlip(), ColorJitter(0.3), ToTensor()])
    val_augment = Compose([Resize(cfg.size), ToTensor()])
    loader_args = dict(batch_size=cfg.batch_size, shuffle=True)
    train_loader = DataLoader(BlobDataset(root, range(split), train_augment), **loader_args)
    loader_args["shuffle"] = False
    val_loader = DataLoader(BlobDataset(root, range(split, cfg.samples), val_augment), **loader_args)
    return train_loader, val_loader
