"""A gradient per sample, clipped and made noisy, by torch.func; then an ensemble and how sure it is."""

import json
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad
from torch.utils.data import DataLoader, TensorDataset

CLIP, NOISE, LOT = 0.5, 0.4, 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 12)
        self.out = nn.Linear(12, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


def blobs(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=g)
    centers = torch.tensor([[0.0, 2, 0, 0], [2.0, -1, 0, 1], [-2.0, -1, 1, 0]])
    return centers[y] + torch.randn(n, 4, generator=g), y


torch.manual_seed(8)
x_train, y_train = blobs(64, 0)
x_val, y_val = blobs(30, 1)
loader = DataLoader(TensorDataset(x_train, y_train), batch_size=LOT, shuffle=True)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.8)


def sample_loss(weights, x, y):
    return F.cross_entropy(functional_call(net, weights, (x[None],)), y[None])


for epoch in range(2):
    net.train()
    clipped = 0
    for x, y in loader:
        weights = {name: p.detach() for name, p in net.named_parameters()}
        total = {name: torch.zeros_like(p) for name, p in weights.items()}
        for i in range(len(x)):
            gradient = grad(sample_loss)(weights, x[i], y[i])
            norm = math.sqrt(sum(g.square().sum().item() for g in gradient.values()))
            factor = min(1.0, CLIP / (norm + 1e-6))
            clipped += factor < 1.0
            for name, g in gradient.items():
                total[name] += factor * g
        for name, p in net.named_parameters():
            p.grad = (total[name] + NOISE * CLIP * torch.randn_like(p)) / LOT
        optimizer.step()
    net.eval()
    with torch.no_grad():
        loss = F.cross_entropy(net(x_val), y_val).item()
    print(f"epoch {epoch} clipped {clipped / len(x_train):.3f} val loss {loss:.4f}")

members = [Net() for _ in range(3)]
for member in members:
    adam = torch.optim.Adam(member.parameters(), lr=0.05)
    for x, y in DataLoader(TensorDataset(x_train, y_train), batch_size=32, shuffle=True):
        adam.zero_grad()
        F.cross_entropy(member(x), y).backward()
        adam.step()
    member.eval()
with torch.no_grad():
    chances = torch.stack([member(x_val).softmax(1) for member in members])
    mean = chances.mean(0)
    unsure = -(mean * mean.log()).sum(1)
    accuracy = (mean.argmax(1) == y_val).float().mean().item()
with open("ensemble.json", "w") as file:
    json.dump({"accuracy": accuracy, "unsure": unsure.mean().item()}, file)
torch.save([member.state_dict() for member in members], "ensemble.pt")
