"""A classifier of signals whose epochs train and evaluate in one function, told by a flag."""

import argparse
import json
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    """Noisy sine waves of four frequencies."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 4, (count,), generator=generator)
        phase = torch.rand(count, 1, generator=generator) * 6.28
        time = torch.linspace(0, 6.28, 48)
        waves = torch.sin((self.labels[:, None] + 1) * time + phase)
        self.waves = waves + 0.6 * torch.randn(count, 48, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.waves[index], self.labels[index]


def run_epoch(model, loader, criterion, device, optimizer=None):
    is_train = optimizer is not None
    model.train(is_train)
    total_loss, correct, seen = 0.0, 0, 0
    with torch.set_grad_enabled(is_train):
        for waves, labels in loader:
            waves, labels = waves.to(device), labels.to(device)
            logits = model(waves)
            loss = criterion(logits, labels)
            if is_train:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total_loss += loss.item() * labels.size(0)
            correct += (logits.argmax(dim=1) == labels).sum().item()
            seen += labels.size(0)
    return total_loss / seen, correct, seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    if args.seed is None:
        args.seed = random.randint(1, 10000)
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(Waves(216, 0), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(Waves(60, 1), batch_size=args.batch_size, shuffle=False)
    model = nn.Sequential(
        nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 4)
    )
    model = nn.DataParallel(model.to(device))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    best, history = 0, []
    for epoch in range(args.epochs):
        loss, hits, count = run_epoch(model, train_loader, criterion, device, optimizer)
        val_loss, val_hits, val_count = run_epoch(model, val_loader, criterion, device)
        scheduler.step(val_loss)
        print(f"epoch {epoch}: loss {loss:.4f}, {hits} of {count}")
        print(f"  validation: loss {val_loss:.4f}, {val_hits} of {val_count}")
        history.append({"loss": loss, "hits": hits, "val_loss": val_loss, "val_hits": val_hits})
        if val_hits > best:
            best = val_hits
            inner = model.module if isinstance(model, nn.DataParallel) else model
            torch.save(inner.state_dict(), "best.pt")
    with open("history.json", "w") as file:
        json.dump(history, file)


if __name__ == "__main__":
    main()
