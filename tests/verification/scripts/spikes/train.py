"""A spiking network with a surrogate gradient, rates and membranes kept over time, mixup, label smoothing and a learning-rate finder."""
import copy
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

random.seed(8)
np.random.seed(8)
torch.manual_seed(8)


class SurrogateHeaviside(torch.autograd.Function):
    sigma = 5.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (SurrogateHeaviside.sigma * x.abs() + 1.0) ** 2


class LIF(nn.Module):
    def __init__(self, n, beta=0.9):
        super().__init__()
        self.beta = nn.Parameter(torch.full((n,), beta))
        self.register_buffer("rate", torch.zeros(n))
        self.mem = None

    def forward(self, current):
        if self.mem is None:
            self.mem = torch.zeros_like(current)
        self.mem = self.beta.clamp(0, 1) * self.mem + current
        spike = SurrogateHeaviside.apply(self.mem - 1.0)
        self.mem = self.mem - spike.detach()
        if self.training:
            with torch.no_grad():
                self.rate.mul_(0.99).add_(spike.mean(0), alpha=0.01)
        return spike


class SNN(nn.Module):
    def __init__(self, inputs=16, hidden=28, outputs=4):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(inputs, hidden), LIF(hidden)
        self.fc2, self.lif2 = nn.Linear(hidden, hidden), LIF(hidden)
        self.readout = nn.Linear(hidden, outputs)

    def reset(self):
        for m in self.modules():
            if isinstance(m, LIF):
                m.mem = None

    def forward(self, x):
        self.reset()
        logits, spikes = 0.0, 0.0
        for t in range(x.size(1)):
            s1 = self.lif1(self.fc1(x[:, t]))
            s2 = self.lif2(self.fc2(s1))
            logits = logits + self.readout(s2)
            spikes = spikes + s1.mean() + s2.mean()
        return logits / x.size(1), spikes / x.size(1)


class SpikeTrains(Dataset):
    def __init__(self, n, seed, steps=12):
        rng = np.random.RandomState(seed)
        rates = np.random.RandomState(99).uniform(0.05, 0.7, (4, 16))
        self.y = rng.randint(0, 4, n)
        self.x = (rng.rand(n, steps, 16) < rates[self.y][:, None]).astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = torch.from_numpy(self.x[i])
        return x.roll(int(torch.randint(0, 3, ())), 0), int(self.y[i])


train_loader = DataLoader(SpikeTrains(100, 0), batch_size=20, shuffle=True)
test_set = SpikeTrains(45, 1)
test_loader = DataLoader(test_set, batch_size=20)
model = SNN()
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)


def lr_find(model, start=1e-4, end=1.0, steps=12):
    state = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=start)
    gamma = (end / start) ** (1 / steps)
    avg, best, lrs, losses, it = 0.0, float("inf"), [], [], iter(train_loader)
    for k in range(steps):
        try:
            x, y = next(it)
        except StopIteration:
            it = iter(train_loader)
            x, y = next(it)
        out, _ = model(x)
        loss = criterion(out, y)
        avg = 0.9 * avg + 0.1 * loss.item()
        smooth = avg / (1 - 0.9 ** (k + 1))
        best = min(best, smooth)
        lrs.append(optimizer.param_groups[0]["lr"])
        losses.append(smooth)
        if smooth > 4 * best:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for g in optimizer.param_groups:
            g["lr"] *= gamma
    model.load_state_dict(state)
    steepest = int(np.argmin(np.gradient(np.array(losses))))
    return lrs[steepest], list(zip(lrs, losses))


def mixup(x, y, alpha=0.4):
    lam = np.random.beta(alpha, alpha)
    index = torch.randperm(x.size(0))
    return lam * x + (1 - lam) * x[index], y, y[index], lam


suggested, curve = lr_find(model)
print(f"suggested lr {suggested:.3e}")
optimizer = torch.optim.RAdam(model.parameters(), lr=0.02)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, total_iters=4)
cos = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cos], milestones=[4])
for epoch in range(5):
    model.train()
    total, hits, seen, firing = 0.0, 0.0, 0, 0.0
    for x, y in train_loader:
        x, ya, yb, lam = mixup(x, y)
        out, spikes = model(x)
        loss = lam * criterion(out, ya) + (1 - lam) * criterion(out, yb) + 0.05 * (spikes - 0.3) ** 2
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        pred = out.argmax(1)
        hits += lam * (pred == ya).sum().item() + (1 - lam) * (pred == yb).sum().item()
        total, seen, firing = total + loss.item() * len(y), seen + len(y), firing + spikes.item()
    model.eval()
    correct, nll = 0, 0.0
    with torch.no_grad():
        for x, y in test_loader:
            out, _ = model(x)
            correct += (out.argmax(1) == y).sum().item()
            nll += F.cross_entropy(out, y, reduction="sum").item()
    print(f"epoch {epoch} loss {total / seen:.4f} mix acc {hits / seen:.4f} rate {firing / len(train_loader):.4f} test acc {correct / 45:.4f} nll {nll / 45:.4f}")
torch.save({"state_dict": model.state_dict(), "curve": curve, "rate": model.lif1.rate, "perplexity": math.exp(nll / 45)}, "snn.pt")
