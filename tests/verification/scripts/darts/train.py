"""A DARTS search cell on small pictures: bilevel with the second-order approximation by finite differences."""
import copy
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
OPS = {
    "none": lambda c: Zero(),
    "skip": lambda c: nn.Identity(),
    "avg": lambda c: nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.BatchNorm2d(c, affine=False)),
    "conv": lambda c: nn.Sequential(nn.ReLU(), nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c, affine=False)),
}


class Zero(nn.Module):
    def forward(self, x):
        return x.mul(0.0)


class MixedOp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self._ops = nn.ModuleList(op(c) for op in OPS.values())

    def forward(self, x, weights):
        return sum(w * op(x) for w, op in zip(weights, self._ops))


class Network(nn.Module):
    def __init__(self, c=6, nodes=2, classes=3):
        super().__init__()
        self.nodes = nodes
        self.stem = nn.Sequential(nn.Conv2d(1, c, 3, padding=1, bias=False), nn.BatchNorm2d(c))
        self.edges = nn.ModuleList(MixedOp(c) for i in range(nodes) for _ in range(i + 1))
        self.classifier = nn.Linear(c * nodes, classes)
        self.alphas = torch.randn(len(self.edges), len(OPS)).mul_(1e-3).requires_grad_()

    def forward(self, x):
        weights = F.softmax(self.alphas, dim=-1)
        states, k = [self.stem(x)], 0
        for i in range(self.nodes):
            s = sum(self.edges[k + j](h, weights[k + j]) for j, h in enumerate(states))
            k += len(states)
            states.append(s)
        return self.classifier(torch.cat(states[1:], 1).mean((2, 3)))

    def genotype(self):
        names = list(OPS)
        return [names[1 + int(row[1:].argmax())] for row in F.softmax(self.alphas, -1).data]


class Architect:
    def __init__(self, model, criterion):
        self.model, self.criterion = model, criterion
        self.momentum, self.decay = 0.9, 3e-4
        self.optimizer = torch.optim.Adam([model.alphas], lr=2e-2, betas=(0.5, 0.999), weight_decay=1e-3)

    def unrolled(self, x, y, eta, net_optimizer):
        loss = self.criterion(self.model(x), y)
        params = list(self.model.parameters())
        grads = torch.autograd.grad(loss, params)
        shadow = copy.deepcopy(self.model)
        with torch.no_grad():
            for p, q, g in zip(params, shadow.parameters(), grads):
                moment = net_optimizer.state[p].get("momentum_buffer", torch.zeros_like(p)) * self.momentum
                q.copy_(p - eta * (moment + g + self.decay * p))
        shadow.alphas = self.model.alphas.detach().clone().requires_grad_()
        return shadow

    def step(self, xt, yt, xv, yv, eta, net_optimizer):
        self.optimizer.zero_grad()
        shadow = self.unrolled(xt, yt, eta, net_optimizer)
        loss = self.criterion(shadow(xv), yv)
        grads = torch.autograd.grad(loss, [shadow.alphas, *shadow.parameters()])
        dalpha, vector = grads[0], grads[1:]
        r = 1e-2 / torch.cat([v.reshape(-1) for v in vector]).norm()
        for p, v in zip(self.model.parameters(), vector):
            p.data.add_(v, alpha=r)
        plus = torch.autograd.grad(self.criterion(self.model(xt), yt), self.model.alphas)[0]
        for p, v in zip(self.model.parameters(), vector):
            p.data.sub_(v, alpha=2 * r)
        minus = torch.autograd.grad(self.criterion(self.model(xt), yt), self.model.alphas)[0]
        for p, v in zip(self.model.parameters(), vector):
            p.data.add_(v, alpha=r)
        self.model.alphas.grad = dalpha - eta * (plus - minus) / (2 * r)
        self.optimizer.step()
        return loss.item()


def stripes(n, seed):
    rng = np.random.RandomState(seed)
    y = rng.randint(0, 3, n)
    x = 0.5 * rng.randn(n, 1, 8, 8)
    for i, k in enumerate(y):
        if k == 0:
            x[i, 0, ::2] += 1
        elif k == 1:
            x[i, 0, :, ::2] += 1
        else:
            x[i, 0] += 0.5
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.from_numpy(y))


data, test = stripes(100, 0), stripes(30, 1)
indices = list(range(100))
train_queue = DataLoader(data, batch_size=16, sampler=SubsetRandomSampler(indices[:50]))
valid_queue = DataLoader(data, batch_size=16, sampler=SubsetRandomSampler(indices[50:]))
criterion = nn.CrossEntropyLoss()
model = Network()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=3e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4, eta_min=0.01)
architect = Architect(model, criterion)
for epoch in range(4):
    lr = scheduler.get_last_lr()[0]
    model.train()
    objs, n = 0.0, 0
    for step, (x, y) in enumerate(train_queue):
        xv, yv = next(iter(valid_queue))
        val = architect.step(x, y, xv, yv, lr, optimizer)
        optimizer.zero_grad()
        logits = model(x)
        loss = criterion(logits, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        objs += loss.item() * len(x)
        n += len(x)
    scheduler.step()
    model.eval()
    with torch.no_grad():
        out = model(test.tensors[0])
        acc = (out.argmax(1) == test.tensors[1]).float().mean().item()
    print(f"epoch {epoch} lr {lr:.4f} train {objs / n:.4f} arch {val:.4f} test acc {acc:.4f}")
    print("alphas", [[round(v, 4) for v in row] for row in F.softmax(model.alphas, -1).tolist()])
print(model.genotype())
torch.save({"model": model.state_dict(), "alphas": model.alphas.data}, "search.pt")
