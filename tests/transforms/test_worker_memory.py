from __future__ import annotations

from collections.abc import Callable

import pytest

Check = Callable[..., None]
SCRIPT = """
import argparse
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms
from torchvision.transforms import v2
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=128)
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--required", type=int)
args = parser.parse_args()
mean = [0.5, 0.5, 0.5]
T = transforms
{setup}
train_set = {dataset}
loader = DataLoader(train_set, {loader})
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in loader:
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
"""
LOADER = "batch_size=32, num_workers=4"
CROP = 'datasets.ImageFolder("data", T.Compose([T.RandomResizedCrop(224), T.ToTensor()]))'


def training(dataset: str = CROP, loader: str = LOADER, setup: str = "") -> str:
    return SCRIPT.format(dataset=dataset, loader=loader, setup=setup)


def arithmetic(sizes: str, total: str, as_bytes: str | None) -> str:
    message = f"{sizes} = {total} of shared memory (containers have 64 MiB unless `--shm-size` says otherwise)"
    return (
        message + f"; {as_bytes} if they stay uint8 until they are on the device"
        if as_bytes
        else message
    )


def folder(*steps: str) -> str:
    return f'datasets.ImageFolder("data", transforms.Compose([{", ".join(steps)}]))'


@pytest.mark.parametrize(
    ("dataset", "image", "total", "as_bytes"),
    [
        (CROP, "3 x 224 x 224 float32", "147 MiB", "37 MiB"),
        (
            folder("T.Resize((96, 160))", "T.ToTensor()", "T.Normalize(mean, mean)"),
            "3 x 96 x 160 float32",
            "45 MiB",
            "11 MiB",
        ),
        (
            folder("T.Resize(256)", "T.CenterCrop(args.size)", "T.ToTensor()"),
            "3 x 128 x 128 float32",
            "48 MiB",
            "12 MiB",
        ),
        (
            folder("T.RandomCrop(64)", "T.Grayscale()", "T.ToTensor()"),
            "1 x 64 x 64 float32",
            "4 MiB",
            "1 MiB",
        ),
        (folder("v2.RandomCrop(256)", "v2.PILToTensor()"), "3 x 256 x 256 uint8", "48 MiB", None),
        (
            'datasets.CIFAR10("data", transform=T.Compose([T.RandomHorizontalFlip(), T.ToTensor()]))',
            "3 x 32 x 32 float32",
            "3 MiB",
            "1 MiB",
        ),
        (
            'datasets.MNIST("data", transform=T.ToTensor())',
            "1 x 28 x 28 float32",
            "1 MiB",
            "1 MiB",
        ),
    ],
)
def test_arithmetic_of_the_image(
    check_advised: Check, dataset: str, image: str, total: str, as_bytes: str | None
) -> None:
    sizes = f"4 workers x 2 batches ahead x 32 images of {image}"
    check_advised(training(dataset), arithmetic(sizes, total, as_bytes))


@pytest.mark.parametrize(
    ("loader", "sizes", "total", "as_bytes"),
    [
        ("64, num_workers=1", "1 worker x 2 batches ahead x 64", "74 MiB", "18 MiB"),
        (
            "batch_size=256, num_workers=args.workers, prefetch_factor=4",
            "4 workers x 4 batches ahead x 256",
            "2.3 GiB",
            "588 MiB",
        ),
        (
            "batch_size=256, num_workers=args.workers, prefetch_factor=4 if args.workers > 0 else None",
            "4 workers x 4 batches ahead x 256",
            "2.3 GiB",
            "588 MiB",
        ),
        (
            "batch_size=32, num_workers=min(8, os.cpu_count())",
            "up to 8 workers x 2 batches ahead x 32",
            "294 MiB",
            "74 MiB",
        ),
        (
            "batch_size=32, num_workers=max(2, min(16, os.cpu_count()))",
            "up to 16 workers x 2 batches ahead x 32",
            "588 MiB",
            "147 MiB",
        ),
        (
            "**dict(batch_size=32, num_workers=2)",
            "2 workers x 2 batches ahead x 32",
            "74 MiB",
            "18 MiB",
        ),
    ],
)
def test_arithmetic_of_the_loader(
    check_advised: Check, loader: str, sizes: str, total: str, as_bytes: str
) -> None:
    expected = arithmetic(f"{sizes} images of 3 x 224 x 224 float32", total, as_bytes)
    check_advised(training(loader=loader), expected)


def test_dataset_of_the_project(check_advised: Check) -> None:
    files = {
        "train.py": training(
            "Photos([], T.Compose([T.RandomCrop(128), T.ToTensor()]))",
            setup="from data import Photos",
        ),
        "data.py": """
            from PIL import Image
            from torch.utils.data import Dataset

            class Photos(Dataset):
                def __init__(self, paths, transform):
                    self.paths, self.transform = paths, transform

                def __len__(self):
                    return len(self.paths)

                def __getitem__(self, index):
                    return self.transform(Image.open(self.paths[index]).convert("RGB"))
        """,
    }
    sizes = "4 workers x 2 batches ahead x 32 images of 3 x 128 x 128 float32"
    check_advised(files, arithmetic(sizes, "48 MiB", "12 MiB"))


@pytest.mark.parametrize(
    ("dataset", "loader"),
    [
        (CROP, "batch_size=32"),
        (CROP, "batch_size=32, num_workers=0"),
        (CROP, "batch_size=32, num_workers=os.cpu_count()"),
        (CROP, "batch_size=args.required, num_workers=4"),
        (CROP, f"{LOADER}, collate_fn=lambda items: items"),
        (CROP, f"{LOADER}, **vars(args)"),
        (folder("T.Resize(256)", "T.ToTensor()"), LOADER),
        (folder("T.RandomCrop(64)", "T.Pad(4)", "T.ToTensor()"), LOADER),
        (folder("T.RandomCrop(64)", "T.FiveCrop(32)", "T.ToTensor()"), LOADER),
        (folder("T.RandomCrop(64)", "T.Lambda(print)", "T.ToTensor()"), LOADER),
        (folder("T.RandomCrop(64)", "unknown", "T.ToTensor()"), LOADER),
        (folder("T.RandomCrop(args.required)", "T.ToTensor()"), LOADER),
        (folder("T.RandomCrop(64)"), LOADER),
        ('datasets.ImageFolder("data")', LOADER),
        ("[1, 2, 3]", LOADER),
        ("unknown", LOADER),
    ],
)
def test_silent_where_something_is_not_told(
    check_advised: Check, dataset: str, loader: str
) -> None:
    check_advised(training(dataset, loader))


def test_silent_about_small_batches_unless_asked(check_advised: Check) -> None:
    small = training(loader="batch_size=4, num_workers=2")
    check_advised(small, select=frozenset[str]())
    sizes = "2 workers x 2 batches ahead x 4 images of 3 x 224 x 224 float32"
    check_advised(small, arithmetic(sizes, "9 MiB", "2 MiB"))


def test_tells_about_the_workers_that_the_rewrite_adds(rewrite: Callable[..., object]) -> None:
    result = rewrite(training(loader="batch_size=32"), ["dataloader-workers", "worker-memory"])
    (given,) = result.files[0].advice  # pyright: ignore
    assert given.message.startswith("up to 8 workers x 2 batches ahead")  # pyright: ignore
