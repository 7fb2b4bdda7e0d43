"""BYOL on toy signals: a target that follows by a cosine schedule, a linear probe; pickled bytes, an archive and a database are written."""

import copy
import gzip
import io
import json
import math
import pickle
import random
import sqlite3
import zipfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self, n, seed):
        g = np.random.default_rng(seed)
        self.y = g.integers(0, 4, n)
        t = np.linspace(0, 1, 32)
        self.x = np.sin(2 * np.pi * (self.y[:, None] + 1) * t + g.uniform(0, 6.28, (n, 1))).astype(
            "f4"
        ) + 0.2 * g.normal(size=(n, 32)).astype("f4")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), int(self.y[i]), i


def augment(x):
    shift = torch.randint(0, 32, (len(x),))
    idx = (torch.arange(32)[None] + shift[:, None]) % 32
    x = x.gather(1, idx)
    x = x * (0.8 + 0.4 * torch.rand(len(x), 1)) + 0.1 * torch.randn_like(x)
    keep = (torch.rand_like(x) > 0.1).float()
    return x * keep


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(inplace=True), nn.Linear(h, o))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 8, 5, padding=2),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(8),
            nn.Flatten(),
            nn.Linear(64, 32),
        )
        self.proj = mlp(32, 48, 16)

    def forward(self, x):
        h = self.conv(x[:, None])
        return self.proj(h), h


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = Encoder()
        self.pred = mlp(16, 32, 16)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad_(False)

    def forward(self, a, b):
        za, _ = self.online(a)
        zb, _ = self.online(b)
        pa, pb = self.pred(za), self.pred(zb)
        with torch.no_grad():
            ta, _ = self.target(a)
            tb, _ = self.target(b)
        return (loss_fn(pa, tb) + loss_fn(pb, ta)).mean()

    @torch.no_grad()
    def update(self, tau):
        for o, t in zip(self.online.parameters(), self.target.parameters(), strict=True):
            t.data = tau * t.data + (1 - tau) * o.data


def loss_fn(p, z):
    return 2 - 2 * F.cosine_similarity(p, z.detach(), dim=-1)


def embed(encoder, loader):
    encoder.eval()
    hs, ys = [], []
    with torch.no_grad():
        for x, y, _ in loader:
            hs.append(encoder(x)[1])
            ys.append(y)
    encoder.train()
    return torch.cat(hs), torch.cat(ys)


def probe(h, y, ht, yt):
    mu, sd = h.mean(0), h.std(0)
    h, ht = (h - mu) / sd, (ht - mu) / sd
    w = torch.zeros(32, 4, requires_grad=True)
    b = torch.zeros(4, requires_grad=True)
    opt = torch.optim.LBFGS([w, b], lr=0.5, max_iter=8)

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(h @ w + b, y) + 1e-3 * w.pow(2).sum()
        loss.backward()
        return loss

    opt.step(closure)
    with torch.no_grad():
        pred = (ht @ w + b).argmax(1)
    conf = torch.zeros(4, 4, dtype=torch.long)
    for a, p in zip(yt, pred, strict=True):
        conf[a, p] += 1
    return (pred == yt).float().mean().item(), conf


def main():
    seed = 99
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    train, test = Signals(200, 1), Signals(80, 2)
    loader = DataLoader(train, 40, shuffle=True, drop_last=True)
    tl, el = DataLoader(train, 64), DataLoader(test, 64)
    model = BYOL()
    params = [
        {"params": model.online.parameters()},
        {"params": model.pred.parameters(), "lr": 1e-2},
    ]
    opt = torch.optim.SGD(params, lr=3e-3, momentum=0.9, weight_decay=1e-4)
    total, step = 4 * len(loader), 0
    db = sqlite3.connect("byol.sqlite")
    db.executescript("drop table if exists m; create table m (epoch int, loss real, acc real);")
    for epoch in range(4):
        losses = []
        for x, _, _ in loader:
            a, b = augment(x), augment(x)
            loss = model(a, b)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tau = 1 - (1 - 0.9) * (math.cos(math.pi * step / total) + 1) / 2
            model.update(tau)
            losses.append(loss.item())
            step += 1
        h, y = embed(model.target, tl)
        ht, yt = embed(model.target, el)
        acc, conf = probe(h, y, ht, yt)
        db.execute("insert into m values (?,?,?)", (epoch, float(np.mean(losses)), acc))
        print(
            f"epoch {epoch} loss {np.mean(losses):.4f} probe {acc:.3f} std {ht.std(0).mean():.4f}"
        )
    db.commit()
    db.close()
    with gzip.open("emb.pkl.gz", "wb") as f:
        f.write(pickle.dumps({"h": ht.numpy(), "y": yt.numpy(), "conf": conf.tolist()}))
    with open("emb.pkl", "wb") as f:
        f.write(pickle.dumps((ht, yt)))
    buffer = io.BytesIO()
    torch.save(model.online.state_dict(), buffer)
    with zipfile.ZipFile("bundle.zip", "w") as z:
        z.writestr("weights.pt", buffer.getvalue())
        z.writestr("metrics.json", json.dumps({"acc": acc, "loss": losses[-1]}))


if __name__ == "__main__":
    main()
