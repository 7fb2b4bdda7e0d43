"""Tell sunsets, seas and meadows apart: a small CNN on photos of a megapixel, read straight from JPEG."""
import argparse
import csv
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


def train(model, loader, optimizer, device, epoch, log_interval):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % log_interval == 0:
            print(f"Epoch {epoch} [{batch_idx}/{len(loader)}] loss: {loss.item():.4f}")


def validate(model, loader, device):
    model.eval()
    val_loss = 0.0
    correct = 0
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        output = model(data)
        val_loss += F.cross_entropy(output, target, reduction="sum").item()
        correct += (output.argmax(dim=1) == target).sum().item()
    n = len(loader.dataset)
    print(f"Validation: loss {val_loss / n:.4f}, accuracy {correct}/{n}")


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

    normalize = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    train_transform = transforms.Compose([
        transforms.RandomResizedCrop(args.size, scale=(0.3, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.2, 0.2, 0.2),
        transforms.ToTensor(),
        normalize,
    ])
    val_transform = transforms.Compose([
        transforms.Resize(args.size),
        transforms.CenterCrop(args.size),
        transforms.ToTensor(),
        normalize,
    ])
    train_set = PhotoDataset(make_photos(args.data, "train", args.train_photos), train_transform)
    val_set = PhotoDataset(make_photos(args.data, "val", args.val_photos), val_transform)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size)

    model = ConvNet(args.width, len(CLASSES)).to(device)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(1, args.epochs + 1):
        train(model, train_loader, optimizer, device, epoch, args.log_interval)
        validate(model, val_loader, device)
        torch.save(model.state_dict(), "photo_classifier.pt")


if __name__ == "__main__":
    main()
