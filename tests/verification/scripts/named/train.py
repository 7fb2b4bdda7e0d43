"""Regression of noisy waves; checkpoints are named by their validation loss, the best two are kept."""

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def waves(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, generator=g) * 4 - 2
    y = torch.sin(x[:, :1] * 2) + x[:, 1:2] * x[:, 2:] + 0.1 * torch.randn(n, 1, generator=g)
    return TensorDataset(x, y)


class Saver:
    def __init__(self, folder, keep=2):
        self.folder, self.keep, self.kept = Path(folder), keep, []
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, model, epoch, loss):
        path = self.folder / f"epoch={epoch:02d}-val={loss:.4f}.ckpt"
        torch.save({"epoch": epoch, "loss": loss, "state": model.state_dict()}, path)
        self.kept.append((loss, path))
        self.kept.sort()
        for _, old in self.kept[self.keep :]:
            os.remove(old)
        self.kept = self.kept[: self.keep]

    @property
    def best(self):
        return self.kept[0][1]


def evaluate(model, loader):
    model.eval()
    total, n = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            total += F.mse_loss(model(x), y, reduction="sum").item()
            n += len(x)
    return total / n


def predict(model, loader):
    model.eval()
    with torch.no_grad():
        return torch.cat([model(x) for x, _ in loader]).squeeze(1).tolist()


def main():
    torch.manual_seed(0)
    train = DataLoader(waves(160, 0), batch_size=16, shuffle=True)
    val = DataLoader(waves(50, 1), batch_size=16)
    test = DataLoader(waves(40, 2), batch_size=16)
    model = nn.Sequential(
        nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
    saver = Saver("ckpt")
    for epoch in range(4):
        model.train()
        seen = 0.0
        for x, y in train:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += loss.item() * len(x)
        scheduler.step()
        mean = seen / len(train.dataset)
        saver.save(model, epoch, evaluate(model, val))
    model.load_state_dict(torch.load(saver.best)["state"])
    final = evaluate(model, test)
    folder = Path(f"results_{final:.3f}")
    folder.mkdir()
    (folder / f"predictions_{final:.4f}.csv").write_text(
        "\n".join(f"{p:.4f}" for p in predict(model, test))
    )


if __name__ == "__main__":
    main()
