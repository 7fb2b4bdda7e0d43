"""Segmentation of street scenes, 512x512, with a small U-Net."""
import argparse
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

CLASSES = ["sky", "building", "road", "car"]


def draw_scene(seed, size=640):
    """A made-up street: image and mask of class indices, the same for the same seed."""
    rng = random.Random(seed)
    colors = [tuple(c + rng.randint(-30, 30) for c in base) for base in
              [(120, 160, 220), (150, 110, 90), (90, 90, 95), (190, 50, 50)]]
    image = Image.new("RGB", (size, size), colors[0])
    mask = Image.new("L", (size, size), 0)

    def paint(box, index):
        ImageDraw.Draw(image).rectangle(box, fill=colors[index])
        ImageDraw.Draw(mask).rectangle(box, fill=index)

    horizon = rng.randint(size // 2, size * 3 // 4)
    for left in range(0, size, size // 4):
        paint((left, rng.randint(size // 8, horizon - 10), left + rng.randint(size // 8, size // 4), horizon), 1)
    paint((0, horizon, size, size), 2)
    for _ in range(rng.randint(1, 4)):
        x, y = rng.randint(0, size), rng.randint(horizon, size - 10)
        paint((x, y, x + size // 6, min(size, y + size // 10)), 3)
    noise = np.random.default_rng(seed).normal(0, 12, (size, size, 3))
    pixels = np.asarray(image, dtype=np.float32) + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), mask


def make_scenes(root, split, count):
    folder = os.path.join(root, split)
    os.makedirs(folder, exist_ok=True)
    for i in range(count):
        path = os.path.join(folder, "%05d" % i)
        if not os.path.exists(path + ".png"):
            image, mask = draw_scene(i + (10 ** 6 if split == "val" else 0))
            image.save(path + ".jpg", quality=92)
            mask.save(path + ".png")
    return folder


class StreetDataset(Dataset):
    def __init__(self, folder, count, size, augment, transform):
        self.names = [os.path.join(folder, "%05d" % i) for i in range(count)]
        self.size = size
        self.augment = augment
        self.transform = transform

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        image = Image.open(self.names[index] + ".jpg").convert("RGB")
        mask = Image.open(self.names[index] + ".png")
        image = image.resize((self.size, self.size), Image.BILINEAR)
        mask = mask.resize((self.size, self.size), Image.NEAREST)
        if self.augment and random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
            mask = mask.transpose(Image.FLIP_LEFT_RIGHT)
        return self.transform(image), torch.from_numpy(np.array(mask, dtype=np.int64))


class Block(nn.Sequential):
    def __init__(self, n_in, n_out):
        super().__init__(
            nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(),
        )


class SegNet(nn.Module):
    def __init__(self, width, num_classes):
        super().__init__()
        self.enc1 = Block(3, width)
        self.enc2 = Block(width, 2 * width)
        self.enc3 = Block(2 * width, 4 * width)
        self.dec2 = Block(6 * width, 2 * width)
        self.dec1 = Block(3 * width, width)
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        e3 = self.enc3(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([F.interpolate(e3, scale_factor=2), e2], dim=1))
        d1 = self.dec1(torch.cat([F.interpolate(d2, scale_factor=2), e1], dim=1))
        return self.head(d1)


def iou(confusion):
    """Intersection over union per class, from a confusion matrix."""
    hits = confusion.diag()
    return hits / (confusion.sum(0) + confusion.sum(1) - hits).clamp(min=1)


def evaluate(model, loader, device):
    model.eval()
    confusion = torch.zeros(len(CLASSES), len(CLASSES))
    for images, masks in loader:
        images = images.to(device)
        masks = masks.to(device)
        predicted = model(images).argmax(dim=1)
        pairs = (masks * len(CLASSES) + predicted).flatten()
        counts = torch.bincount(pairs, minlength=len(CLASSES) ** 2)
        confusion += counts.view(len(CLASSES), len(CLASSES)).cpu()
    return iou(confusion)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="./data")
    parser.add_argument("--train-images", type=int, default=1600)
    parser.add_argument("--val-images", type=int, default=160)
    parser.add_argument("--size", type=int, default=512, help="side of the images, divisible by 4")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    transform = transforms.Compose([
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])
    train_folder = make_scenes(args.data, "train", args.train_images)
    val_folder = make_scenes(args.data, "val", args.val_images)
    train_set = StreetDataset(train_folder, args.train_images, args.size, True, transform)
    val_set = StreetDataset(val_folder, args.val_images, args.size, False, transform)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=2)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=2)

    model = SegNet(args.width, len(CLASSES)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for images, masks in train_loader:
            images = images.to(device)
            masks = masks.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), masks)
            loss.backward()
            optimizer.step()
            total += loss.item()
        scores = evaluate(model, val_loader, device)
        print("epoch %d: loss %.4f, mean IoU %.4f" % (epoch + 1, total / len(train_loader), scores.mean()))
        for name, score in zip(CLASSES, scores):
            print("  %-10s %.4f" % (name, score))
        torch.save(model.state_dict(), "segmentation.pt")


if __name__ == "__main__":
    main()
