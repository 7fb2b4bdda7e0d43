"""Two tasks on one trunk: uncertainty weights that are learned, label smoothing by hand, cutmix, a backbone that thaws, a run that resumes."""

import json
import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

CONFIG = SimpleNamespace(
    data=SimpleNamespace(train=60, val=22, size=12, batch=16),
    optim=SimpleNamespace(lr=0.05, momentum=0.9, decay=1e-3, clip=2.0),
    smoothing=0.1,
    cutmix=0.5,
    thaw=1,
    epochs=3,
)


class Shapes(Dataset):
    def __init__(self, n, size, seed, augment):
        rng = np.random.default_rng(seed)
        self.labels = rng.choice(4, n, p=[0.5, 0.25, 0.15, 0.1])
        self.targets = rng.uniform(0.2, 1, n).astype(np.float32)
        grid = np.mgrid[:size, :size] / size - 0.5
        waves = [
            np.sin(8 * grid[0]),
            np.cos(8 * grid[1]),
            np.sin(6 * (grid[0] + grid[1])),
            np.hypot(*grid),
        ]
        self.images = np.stack([t * waves[c] for c, t in zip(self.labels, self.targets)]).astype(
            np.float32
        )
        self.images += 0.1 * rng.normal(size=self.images.shape).astype(np.float32)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = torch.from_numpy(self.images[i].copy())[None]
        if self.augment and random.random() < 0.5:
            image = image.flip(-1)
        return {
            "image": image,
            "label": int(self.labels[i]),
            "target": self.targets[i],
            "known": bool(i % 5),
        }


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, padding=1),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.neck = nn.Sequential(nn.Linear(12, 16), nn.PReLU(), nn.Dropout(0.2))
        self.kind = nn.Linear(16, 4)
        self.size = nn.Linear(16, 1)
        self.log_vars = nn.Parameter(torch.zeros(2))

    def train(self, mode=True):
        super().train(mode)
        if mode and not next(self.backbone.parameters()).requires_grad:
            self.backbone.eval()
        return self

    def forward(self, x):
        h = self.neck(self.backbone(x))
        return self.kind(h), self.size(h).squeeze(1)


def smoothed(logits, label, eps):
    logp = F.log_softmax(logits, 1)
    nll = -logp.gather(1, label[:, None]).squeeze(1)
    return ((1 - eps) * nll - eps * logp.mean(1)).mean()


def cut(images, rng):
    lam = rng.beta(1.0, 1.0)
    order = torch.randperm(len(images))
    size = images.shape[-1]
    side = int(size * np.sqrt(1 - lam))
    y, x = rng.integers(0, size - side + 1, 2)
    images = images.clone()
    images[:, :, y : y + side, x : x + side] = images[order][:, :, y : y + side, x : x + side]
    return images, order, 1 - side * side / size**2


def evaluate(net, loader):
    net.eval()
    right, counts, error, known = torch.zeros(4), torch.zeros(4), 0.0, 0
    with torch.no_grad():
        for batch in loader:
            logits, size = net(batch["image"])
            hit = logits.argmax(1) == batch["label"]
            for c in range(4):
                right[c] += (hit & (batch["label"] == c)).sum()
                counts[c] += (batch["label"] == c).sum()
            error += ((size - batch["target"]).abs() * batch["known"]).sum().item()
            known += batch["known"].sum().item()
    return (right / counts.clamp(min=1)).tolist(), error / known


def train(cfg, folder, until, resume=None):
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    rng = np.random.default_rng(7)
    data = Shapes(cfg.data.train, cfg.data.size, 0, augment=True)
    frequency = np.bincount(data.labels, minlength=4)
    sampler = WeightedRandomSampler(1.0 / frequency[data.labels], len(data), replacement=True)
    loader = DataLoader(data, cfg.data.batch, sampler=sampler)
    val = DataLoader(Shapes(cfg.data.val, cfg.data.size, 1, augment=False), 8)
    net = Net()
    net.backbone.requires_grad_(False)
    heads = [
        p for n, p in net.named_parameters() if not n.startswith("backbone") and n != "log_vars"
    ]
    optimizer = torch.optim.SGD(
        [
            {"params": heads},
            {"params": [net.log_vars], "weight_decay": 0.0, "lr": cfg.optim.lr / 5},
        ],
        lr=cfg.optim.lr,
        momentum=cfg.optim.momentum,
        weight_decay=cfg.optim.decay,
        nesterov=True,
    )
    start, step, best = 0, 0, -1.0
    if resume is not None:
        state = torch.load(resume, weights_only=False)
        if state["epoch"] + 1 > cfg.thaw:
            net.backbone.requires_grad_(True)
            optimizer.add_param_group(
                {"params": list(net.backbone.parameters()), "lr": cfg.optim.lr / 10}
            )
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        start, step, best = state["epoch"] + 1, state["step"], state["best"]
        torch.set_rng_state(state["rng"])
    log = (folder / "log.jsonl").open("a")
    for epoch in range(start, until):
        if epoch == cfg.thaw:
            net.backbone.requires_grad_(True)
            optimizer.add_param_group(
                {"params": list(net.backbone.parameters()), "lr": cfg.optim.lr / 10}
            )
        net.train()
        sums = np.zeros(3)
        for batch in loader:
            images, label, target = batch["image"], batch["label"], batch["target"]
            if rng.random() < cfg.cutmix:
                images, order, lam = cut(images, rng)
            else:
                order, lam = torch.arange(len(images)), 1.0
            logits, size = net(images)
            kind_loss = lam * smoothed(logits, label, cfg.smoothing) + (1 - lam) * smoothed(
                logits, label[order], cfg.smoothing
            )
            known = batch["known"].float()
            size_loss = (
                F.smooth_l1_loss(size, target, reduction="none") * known
            ).sum() / known.sum().clamp(min=1)
            precision = torch.exp(-net.log_vars)
            loss = (precision * torch.stack([kind_loss, size_loss]) + 0.5 * net.log_vars).sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(
                [p for g in optimizer.param_groups for p in g["params"]], cfg.optim.clip
            )
            optimizer.step()
            step += 1
            for group in optimizer.param_groups:
                group["lr"] *= 0.97
            sums += np.array([loss.item(), kind_loss.item(), size_loss.item()]) * len(images)
        recall, error = evaluate(net, val)
        score = sum(recall) / 4
        log.write(
            json.dumps(
                {
                    "epoch": epoch,
                    "step": step,
                    "loss": list(sums / len(data)),
                    "recall": recall,
                    "mae": error,
                }
            )
            + "\n"
        )
        log.flush()
        state = {
            "net": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
            "step": step,
            "rng": torch.get_rng_state(),
        }
        state["best"] = best = max(best, score)
        torch.save(state, folder / "last.pt")
        if score == best:
            os.replace(folder / "last.pt", folder / "best.pt")
            torch.save(state, folder / "last.pt")
        print(f"epoch {epoch} balanced {score:.4f} mae {error:.4f} weights {precision.tolist()}")
    return net


def main():
    folder = Path("multi_run")
    folder.mkdir(exist_ok=True)
    train(CONFIG, folder, until=2)
    train(CONFIG, folder, until=CONFIG.epochs, resume=folder / "last.pt")


if __name__ == "__main__":
    main()
