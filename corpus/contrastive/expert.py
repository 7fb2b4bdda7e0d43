"""Contrastive pretraining: train.py, tuned by hand. What changed, and why:

- The pictures' files stay in memory, still encoded: only decoding is left to do in every epoch.
- Worker processes decode and augment, and stay alive between epochs. Two heavily augmented views of each picture are
  nearly all the work of a step.
- Batches cross to the GPU from pinned memory while the host goes on, and the loss is read once per epoch.
- What the loss needs is made on the device. Mixed precision (bfloat16, where the GPU has it), fused Adam, and a network
  compiled in place, so that the names in the saved file stay what they are.
- TF32 for what stays in float32, and cuDNN measures which algorithms are fastest: all batches have one shape.
"""
import argparse
import io
import os
import random
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from plants import draw_plants


class TwoViews(Dataset):
    """Opens a picture twice as large as needed and cuts two random views from it."""

    def __init__(self, root, size):
        files = [path.read_bytes() for path in sorted(Path(root).glob("*.jpg"))]
        # One tensor for all files: worker processes share it.
        self.ends = torch.tensor([len(file) for file in files]).cumsum(0)
        self.files = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
        self.augment = transforms.Compose([
            transforms.Resize(2 * size),
            transforms.RandomResizedCrop(size, scale=(0.2, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.GaussianBlur(9, sigma=(0.1, 2.0)),
            transforms.ToTensor(),
        ])

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, index):
        start = self.ends[index - 1] if index > 0 else 0
        file = io.BytesIO(self.files[start : self.ends[index]].numpy())
        image = Image.open(file).convert("RGB")
        return self.augment(image), self.augment(image)


class Encoder(nn.Module):
    """A small residual network and the two-layer head whose output the loss compares."""

    def __init__(self, width, dim):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*[Block(width * 2**i, width * 2 ** (i + 1)) for i in range(3)])
        self.head = nn.Sequential(nn.Linear(8 * width, 8 * width), nn.ReLU(), nn.Linear(8 * width, dim))

    def forward(self, x):
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return F.normalize(self.head(x.mean(dim=(2, 3))), dim=1)


class Block(nn.Module):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Conv2d(channels, out_channels, 1, stride=2, bias=False)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


def nt_xent(first, second, temperature):
    """The normalized, temperature-scaled cross entropy of every view against all others of the batch."""
    views = torch.cat([first, second])
    n = first.size(0)
    similarity = views @ views.t() / temperature
    itself = torch.eye(2 * n, dtype=torch.bool, device=views.device)
    similarity = similarity.masked_fill(itself, float("-inf"))
    partner = torch.arange(2 * n, device=views.device).roll(n)
    return F.cross_entropy(similarity, partner)


def train_epoch(model, loader, optimizer, device, temperature):
    model.train()
    total = torch.zeros((), device=device)
    bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    for first, second in loader:
        first, second = first.to(device, non_blocking=True), second.to(device, non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            first, second = model(first), model(second)
        loss = nt_xent(first.float(), second.float(), temperature)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--pictures", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=128, help="side of the views")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dim", type=int, default=128, help="of the projections")
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    dataset = TwoViews(draw_plants(args.data, args.pictures), args.size)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=min(16, cores),
        persistent_workers=True,
        pin_memory=device.type == "cuda",
    )
    model = Encoder(args.width, args.dim).to(device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        model.compile()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=args.lr, weight_decay=1e-6, fused=device.type == "cuda"
    )

    for epoch in range(args.epochs):
        loss = train_epoch(model, loader, optimizer, device, args.temperature)
        print(f"epoch {epoch + 1}: contrastive loss {loss:.4f}")
        torch.save({"epoch": epoch, "model": model.state_dict()}, "encoder.pt")


if __name__ == "__main__":
    main()
