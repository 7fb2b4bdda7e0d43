"""Quantile regression of demand for several stores: numpy batches, crossing penalty, save, crash, resume from the checkpoint, conformal margins."""
import json
import os
import random

import numpy as np
import torch
import torch.nn as nn

SEED = 17
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)
QUANTILES = [0.1, 0.5, 0.9]


def demand(n, rng):
    hour, temp, store = rng.uniform(0, 24, n), rng.normal(15, 8, n), rng.integers(0, 5, n)
    level = 20 + 10 * np.sin(hour / 24 * 2 * np.pi) + 0.5 * temp + 3 * store
    y = level + rng.gamma(2.0, 1.0 + 0.1 * hour)
    x = np.stack([np.sin(hour / 24 * 2 * np.pi), np.cos(hour / 24 * 2 * np.pi), temp], 1)
    return x.astype(np.float32), store, y.astype(np.float32)


class QuantileNet(nn.Module):
    def __init__(self, stores=5):
        super().__init__()
        self.store = nn.Embedding(stores, 3)
        self.net = nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.SiLU())
        self.head = nn.Linear(32, len(QUANTILES))

    def forward(self, x, s):
        return self.head(self.net(torch.cat([x, self.store(s)], -1)))


class PinballLoss(nn.Module):
    def __init__(self, quantiles, crossing=0.5):
        super().__init__()
        self.register_buffer("q", torch.tensor(quantiles))
        self.crossing = crossing

    def forward(self, pred, y):
        error = y.unsqueeze(1) - pred
        pinball = torch.max((self.q - 1) * error, self.q * error).sum(1).mean()
        cross = torch.relu(pred[:, :-1] - pred[:, 1:]).mean()
        return pinball + self.crossing * cross


rng = np.random.default_rng(SEED)
x, s, y = demand(300, rng)
x_cal, s_cal, y_cal = demand(80, rng)
x_te, s_te, y_te = demand(90, rng)
mu, sd, ym, ys = x.mean(0), x.std(0), y.mean(), y.std()


def tensors(x, s, y):
    return torch.from_numpy((x - mu) / sd), torch.from_numpy(s), torch.from_numpy((y - ym) / ys)


train, cal, test = tensors(x, s, y), tensors(x_cal, s_cal, y_cal), tensors(x_te, s_te, y_te)


def build():
    model = QuantileNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01, amsgrad=True)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    return model, optimizer, scheduler


def predict(model, data, batch=32):
    model.eval()
    out = []
    with torch.no_grad():
        for i in range(0, len(data[0]), batch):
            out.append(model(data[0][i : i + batch], data[1][i : i + batch]))
    return torch.cat(out).sort(dim=1).values


def coverage(pred, y):
    return ((y >= pred[:, 0]) & (y <= pred[:, -1])).float().mean().item()


def fit(first, last, resume=None):
    model, optimizer, scheduler = build()
    best, history = float("inf"), []
    if resume:
        ckpt = torch.load(resume, weights_only=False)
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        scheduler.load_state_dict(ckpt["scheduler"])
        best, history = ckpt["best"], ckpt["history"]
    criterion = PinballLoss(QUANTILES)
    for epoch in range(first, last):
        model.train()
        perm, losses = np.random.permutation(len(x)), []
        for i in range(0, len(x), 64):
            idx = torch.from_numpy(perm[i : i + 64])
            pred = model(train[0][idx], train[1][idx])
            loss = criterion(pred, train[2][idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        pred = predict(model, cal)
        val = criterion(pred, cal[2]).item()
        scheduler.step(val)
        history.append({"epoch": epoch, "train": float(np.mean(losses)), "val": val, "coverage": coverage(pred, cal[2])})
        print(f"[{epoch}] train {history[-1]['train']:.4f} val {val:.4f} cov {history[-1]['coverage']:.3f} lr {optimizer.param_groups[0]['lr']:.2e}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "history": history}
        if val < best:
            best = val
            torch.save({**state, "best": best}, "best.pt")
        torch.save({**state, "best": best}, "last.pt")
    return model, history


fit(0, 4)
model, history = fit(4, 9, resume="last.pt")
best = torch.load("best.pt", weights_only=False)
model.load_state_dict(best["model"])
pred_cal = predict(model, cal)
score = torch.maximum(pred_cal[:, 0] - cal[2], cal[2] - pred_cal[:, -1])
margin = score.quantile(min(1.0, 0.8 * (1 + 1 / len(score)))).item()
pred = predict(model, test)
low, high = pred[:, 0] - margin, pred[:, -1] + margin
metrics = {
    "mae": (pred[:, 1] - test[2]).abs().mean().item() * float(ys),
    "coverage": coverage(pred, test[2]),
    "conformal_coverage": ((test[2] >= low) & (test[2] <= high)).float().mean().item(),
    "width": (high - low).mean().item() * float(ys),
    "best_epoch": int(np.argmin([h["val"] for h in history])),
}
os.makedirs("out", exist_ok=True)
with open("out/metrics.json", "w") as f:
    json.dump({"metrics": metrics, "history": history}, f, indent=1)
np.save("out/intervals.npy", torch.stack([low, high], 1).numpy())
print({k: round(v, 4) for k, v in metrics.items()})
