"""From pretraining to export: an autoencoder, a head on frozen features, pruning and fine-tuning, a traced model; files of many kinds."""

import gzip
import io
import json
import os
import pickle
import shutil
import sqlite3
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

OUT = Path("out")


class Encoder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(20, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(width, 8),
        )

    def forward(self, x):
        return self.layers(x)


class Classifier(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.bn = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.bn(self.encoder(x)))


def data(n, seed):
    rng = np.random.RandomState(seed)
    centers = np.random.RandomState(99).normal(size=(3, 20))
    y = rng.randint(0, 3, n)
    x = centers[y] + 1.2 * rng.normal(size=(n, 20)) * 1.7
    return TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y))


def pretrain(encoder, loader, epochs=2):
    decoder = nn.Linear(8, 20)
    optimizer = torch.optim.Adagrad([*encoder.parameters(), *decoder.parameters()], lr=0.05)
    for epoch in range(epochs):
        encoder.train()
        for i, (x, _) in enumerate(loader):
            noisy = x * (torch.rand_like(x) > 0.2)
            loss = F.mse_loss(decoder(encoder(noisy)), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"pretrain {epoch} {i} {loss.item():.5f}", file=sys.stderr)
        path = OUT / f"pretrain_{epoch}.pt"
        torch.save(encoder.state_dict(), path)
        latest = OUT / "latest.pt"
        if latest.is_symlink():
            latest.unlink()
        os.symlink(path.name, latest)
        old = OUT / f"pretrain_{epoch - 1}.pt"
        if old.exists():
            old.unlink()
    return decoder


def accuracy(model, loader):
    model.eval()
    right, confusion = 0, np.zeros((3, 3), dtype=int)
    with torch.no_grad():
        for x, y in loader:
            guess = model(x).argmax(1)
            right += (guess == y).sum().item()
            np.add.at(confusion, (y.numpy(), guess.numpy()), 1)
    return float(right / confusion.sum()), confusion


def picture(array, path):
    low, high = array.min(), array.max()
    gray = ((array - low) / (high - low) * 255).round().astype(np.uint8)
    with open(path, "wb") as f:
        f.write(b"P5\n%d %d\n255\n" % (gray.shape[1], gray.shape[0]))
        f.write(gray.tobytes())


def main():
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(0)
    np.random.seed(0)
    train, test = data(90, 0), data(40, 1)
    loader = DataLoader(train, batch_size=16, shuffle=True)
    test_loader = DataLoader(test, batch_size=16)
    encoder = Encoder()
    decoder = pretrain(encoder, loader)
    with torch.no_grad():
        encoder.eval()
        rebuilt = decoder(encoder(test.tensors[0][:8]))
        picture(rebuilt.numpy(), OUT / "rebuilt.pgm")
    model = Classifier(encoder)
    model.encoder.requires_grad_(False)
    base = sqlite3.connect(OUT / "runs.db")
    base.execute("create table metrics (stage text, epoch integer, loss real, accuracy real)")
    optimizer = torch.optim.RAdam(
        (p for p in model.parameters() if p.requires_grad), lr=0.02, weight_decay=0.01
    )
    best = 0.0
    for epoch in range(3):
        model.train()
        model.encoder.eval()
        losses = []
        for x, y in loader:
            loss = F.cross_entropy(model(x), y, weight=torch.tensor([1.0, 2.0, 1.0]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        score, confusion = accuracy(model, test_loader)
        base.execute(
            "insert into metrics values ('head', ?, ?, ?)", (epoch, float(np.mean(losses)), score)
        )
        buffer = io.BytesIO()
        torch.save({"model": model.state_dict(), "score": score}, buffer)
        with gzip.GzipFile(OUT / f"head_{epoch}.pt.gz", "wb", mtime=0) as f:
            f.write(buffer.getvalue())
        if score > best:
            best = score
            shutil.copyfile(OUT / f"head_{epoch}.pt.gz", OUT / "best.pt.gz")
    base.commit()
    with gzip.open(OUT / "best.pt.gz") as f:
        model.load_state_dict(torch.load(io.BytesIO(f.read()))["model"])
    model.encoder.requires_grad_(True)
    pruned = [(m, "weight") for m in model.modules() if isinstance(m, nn.Linear)]
    prune.global_unstructured(pruned, prune.L1Unstructured, amount=0.4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(2):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for module, name in pruned:
        prune.remove(module, name)
    score, confusion = accuracy(model, test_loader)
    with open(OUT / "confusion.pkl", "wb") as f:
        pickle.dump(confusion, f)
    zeros = {
        n: int((p == 0).sum())
        for n, p in model.named_parameters()
        if n.endswith("weight") and p.dim() > 1
    }
    (OUT / "summary").write_text(json.dumps({"score": score, "zeros": zeros}))
    (OUT / "report.html").write_text(f"<html><body><p>accuracy {score:.4f}</p></body></html>")
    model.eval()
    traced = torch.jit.trace(model, test.tensors[0][:2])
    torch.jit.save(traced, str(OUT / "model.ts"))
    quantized = {
        k: (v * 64).round().clamp(-128, 127).to(torch.int8)
        for k, v in model.state_dict().items()
        if v.is_floating_point()
    }
    np.savez_compressed(OUT / "quantized.npz", **{k: v.numpy() for k, v in quantized.items()})
    logits = model(test.tensors[0]).detach().numpy()
    logits.tofile(OUT / "logits.bin")
    print(f"final accuracy {score:.4f}")


if __name__ == "__main__":
    main()
