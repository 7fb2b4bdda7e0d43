"""Denoising autoencoder on sensor windows: threshold from a percentile of the training errors, F1 and AUC, active re-training on doubtful windows."""

import logging
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

logger = logging.getLogger(__name__)
handler = logging.FileHandler("anomaly.log", mode="w")
handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
logger.addHandler(handler)
logger.setLevel(logging.INFO)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(21)


def windows(n, seed, rate=0.0):
    rng = np.random.default_rng(seed)
    t = np.arange(32) / 32
    phase = rng.uniform(0, 2 * np.pi, (n, 2, 1))
    x = np.sin(2 * np.pi * np.array([[2], [3]])[None] * t + phase) + 0.1 * rng.normal(
        size=(n, 2, 32)
    )
    bad = rng.random(n) < rate
    for i in np.nonzero(bad)[0]:
        a = rng.integers(0, 24)
        x[i, rng.integers(2), a : a + 6] += rng.choice([-1, 1]) * 0.9
    return torch.tensor(x, dtype=torch.float32), torch.tensor(bad)


class AE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv1d(2, 8, 5, 2, 2),
            nn.GroupNorm(2, 8),
            nn.LeakyReLU(0.1),
            nn.Conv1d(8, 12, 5, 2, 2),
            nn.LeakyReLU(0.1),
            nn.Flatten(),
            nn.Linear(96, 10),
        )
        self.dec = nn.Sequential(
            nn.Linear(10, 96),
            nn.Unflatten(1, (12, 8)),
            nn.LeakyReLU(0.1),
            nn.Upsample(scale_factor=2),
            nn.Conv1d(12, 8, 5, 1, 2),
            nn.LeakyReLU(0.1),
            nn.Upsample(scale_factor=2),
            nn.Conv1d(8, 2, 5, 1, 2),
        )

    def forward(self, x):
        return self.dec(self.enc(x))


def errors(model, dataset):
    model.eval()
    out = []
    with torch.no_grad():
        for x, _ in DataLoader(dataset, 30):
            x = x.to(DEVICE)
            out.extend((model(x) - x).pow(2).mean((1, 2)).tolist())
    return np.array(out)


def auc(score, bad):
    order = np.argsort(score)
    rank = np.empty(len(score))
    rank[order] = np.arange(1, len(score) + 1)
    p = bad.sum()
    return (rank[bad].sum() - p * (p + 1) / 2) / (p * (len(bad) - p))


def fit(model, dataset, epochs, lr):
    opt = torch.optim.Adagrad(model.parameters(), lr=lr)
    sched = torch.optim.lr_scheduler.SequentialLR(
        opt,
        [
            torch.optim.lr_scheduler.LinearLR(opt, 0.2, total_iters=3),
            torch.optim.lr_scheduler.PolynomialLR(opt, 12, power=1.5),
        ],
        milestones=[3],
    )
    loader = DataLoader(dataset, 24, shuffle=True)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for x, _ in loader:
            x = x.to(DEVICE)
            noisy = x + 0.2 * torch.randn_like(x)
            loss = F.huber_loss(model(noisy), x, delta=0.5)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item() * len(x)
        logger.info(
            "epoch %d huber %.5f lr %.5f", epoch, total / len(dataset), sched.get_last_lr()[0]
        )


def main():
    normal, flags = windows(130, 0)
    train = TensorDataset(normal, flags)
    pool = TensorDataset(*windows(60, 1, 0.2))
    test_x, bad = windows(80, 2, 0.3)
    test = TensorDataset(test_x, bad)
    bad = bad.numpy()
    model = AE().to(DEVICE)
    data = train
    for stage in range(2):
        fit(model, data, 3, 0.05)
        known = errors(model, data)
        threshold = np.percentile(known, 95)
        score = errors(model, test)
        flagged = score > threshold
        tp = (flagged & bad).sum()
        f1 = 2 * tp / max(1, 2 * tp + (flagged & ~bad).sum() + (~flagged & bad).sum())
        print(
            f"stage {stage}: n {len(data)} threshold {threshold:.5f} f1 {f1:.3f} auc {auc(score, bad):.4f}"
        )
        doubt = errors(model, pool)
        chosen = np.argsort(np.abs(doubt - threshold))[:20]
        chosen = [int(i) for i in chosen if not pool.tensors[1][i]]
        data = ConcatDataset([train, Subset(pool, chosen)])
        Path(f"chosen{stage}.txt").write_text(" ".join(map(str, sorted(chosen))))
    np.save("scores.npy", score)
    torch.save(model.state_dict(), "ae.pt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
