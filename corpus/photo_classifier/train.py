"""Tell sunsets, seas and meadows apart: a small CNN on photos of a megapixel, read straight from JPEG."""
import argparse
import csv
import functools
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from photos import CLASSES, make_photos


class PhotoDataset(Dataset):
    """Reads `labels.csv` (file name, class name) once and the photos as they are asked for."""

    def __init__(self, root, transform):
        self.root = Path(root)
        self.transform = transform
        with open(self.root / "labels.csv", newline="") as f:
            self.items = [(name, CLASSES.index(label)) for name, label in csv.reader(f)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, idx):
        name, label = self.items[idx]
        image = Image.open(self.root / name).convert("RGB")
        return self.transform(image), label


class ConvNet(nn.Module):
    def __init__(self, width, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(4 * width, num_classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.conv3(x))
        x = self.dropout(x.mean(dim=(2, 3)))
        return self.fc(x)


@functools.cache
def channel_statistics(device):
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], device=device).view(3, 1, 1)
    return mean, std


# ToTensor and Normalize, for uint8 images that are on the device already.
def normalize_images(images):
    mean, std = channel_statistics(images.device)
    return images.float().div_(255).sub_(mean).div_(std)


def train(model, loader, optimizer, scaler, device, epoch, log_interval):
    model.train()
    amp_dtype = torch.float16 if scaler.is_enabled() else torch.bfloat16
    for batch_idx, (data, target) in enumerate(loader):
        data, target = (
            data.to(device, non_blocking=True, memory_format=torch.channels_last),
            target.to(device, non_blocking=True),
        )
        data = normalize_images(data)
        if batch_idx % 2 == 0:
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=amp_dtype, enabled=device.type == "cuda"):
            output = model(data)
            loss = F.cross_entropy(output, target)
        scaler.scale(loss / 2).backward()
        if (batch_idx + 1) % 2 == 0 or batch_idx + 1 == len(loader):
            scaler.step(optimizer)
            scaler.update()
        if batch_idx % log_interval == 0:
            print(f"Epoch {epoch} [{batch_idx}/{len(loader)}] loss: {loss.item():.4f}")


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    val_loss = 0.0
    correct = 0
    amp_dtype = (
        torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    )
    for data, target in loader:
        data, target = (
            data.to(device, non_blocking=True, memory_format=torch.channels_last),
            target.to(device, non_blocking=True),
        )
        data = normalize_images(data)
        with torch.autocast("cuda", dtype=amp_dtype, enabled=device.type == "cuda"):
            output = model(data)
            val_loss += F.cross_entropy(output, target, reduction="sum").double()
        correct += (output.argmax(dim=1) == target).sum()
    n = len(loader.dataset)
    print(f"Validation: loss {float(val_loss) / n:.4f}, accuracy {int(correct)}/{n}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="./data")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=128, help="side of the crops")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--train-photos", type=int, default=4000)
    parser.add_argument("--val-photos", type=int, default=500)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_transform = transforms.Compose([
        transforms.RandomResizedCrop(args.size, scale=(0.3, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.2, 0.2, 0.2),
        transforms.PILToTensor(),
    ])
    val_transform = transforms.Compose([
        transforms.Resize(args.size),
        transforms.CenterCrop(args.size),
        transforms.PILToTensor(),
    ])
    train_set = PhotoDataset(make_photos(args.data, "train", args.train_photos), train_transform)
    val_set = PhotoDataset(make_photos(args.data, "val", args.val_photos), val_transform)
    num_workers = min(8, len(os.sched_getaffinity(0)))
    train_loader = DataLoader(
        train_set,
        batch_size=args.batch_size // 2,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=device.type == "cuda",
    )
    val_loader = DataLoader(
        val_set,
        batch_size=args.batch_size,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=device.type == "cuda",
    )

    model = ConvNet(args.width, len(CLASSES)).to(device, memory_format=torch.channels_last)
    optimizer = optim.Adam(model.parameters(), lr=args.lr, fused=device.type == "cuda")
    scaler = torch.amp.GradScaler(
        "cuda",
        enabled=device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False),
    )
    if device.type == "cuda":
        model.compile()

    for epoch in range(1, args.epochs + 1):
        train(model, train_loader, optimizer, scaler, device, epoch, args.log_interval)
        validate(model, val_loader, device)
        torch.save(model.state_dict(), "photo_classifier.pt")


if __name__ == "__main__":
    main()
