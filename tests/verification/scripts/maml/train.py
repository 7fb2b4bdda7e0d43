"""Model-agnostic meta-learning of sine waves: gradients through gradient steps."""

import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1, 24)
        self.b = nn.Linear(24, 24)
        self.c = nn.Linear(24, 1)

    def forward(self, x, weights=None):
        w = dict(self.named_parameters()) if weights is None else weights
        x = torch.tanh(F.linear(x, w["a.weight"], w["a.bias"]))
        x = torch.tanh(F.linear(x, w["b.weight"], w["b.bias"]))
        return F.linear(x, w["c.weight"], w["c.bias"])


def sample_task():
    amplitude, phase = random.uniform(0.5, 2.0), random.uniform(0, math.pi)

    def draw(n):
        x = torch.rand(n, 1) * 6 - 3
        return x, amplitude * torch.sin(x + phase)

    return draw


def adapt(model, x, y, steps, lr):
    weights = dict(model.named_parameters())
    for _ in range(steps):
        loss = F.mse_loss(model(x, weights), y)
        grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: w - lr * g for (name, w), g in zip(weights.items(), grads)}
    return weights


random.seed(3)
torch.manual_seed(3)
model = Net()
meta = torch.optim.Adam(model.parameters(), lr=5e-3)
history = []
for iteration in range(12):
    total = 0.0
    meta.zero_grad()
    for _ in range(4):
        task = sample_task()
        support, query = task(8), task(12)
        fast = adapt(model, *support, steps=2, lr=0.05)
        x, y = query
        loss = F.mse_loss(model(x, fast), y) / 4
        loss.backward()
        total += loss.item()
    meta.step()
    history.append(total)
    if iteration % 4 == 3:
        print(f"iteration {iteration}: query loss {sum(history[-4:]) / 4:.4f}")

tests = [sample_task() for _ in range(3)]
errors = []
for task in tests:
    x, y = task(8)
    fast = adapt(model, x, y, steps=4, lr=0.05)
    with torch.no_grad():
        x, y = task(20)
        errors.append(F.mse_loss(model(x, fast), y).item())
print("test", " ".join(f"{e:.4f}" for e in errors))
torch.save(model.state_dict(), "maml.pt")
