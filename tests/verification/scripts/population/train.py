"""A population of small regressors: after each generation the worst one takes over the best one's weights and momentum, at another learning rate."""

import copy
import json
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GENERATIONS, CLIP = 4, 5.0

random.seed(0)
torch.manual_seed(0)
x = torch.randn(150, 6)
y = x[:, :1] * x[:, 1:2] + 0.5 * x[:, 2:3].sin() + 0.05 * torch.randn(150, 1)


class Member:
    def __init__(self, index, lr, drop):
        self.index = index
        self.net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Dropout(drop), nn.Linear(24, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=0.9)
        self.score = float("inf")
        self.factors = []

    @property
    def lr(self):
        return self.optimizer.param_groups[0]["lr"]

    def train(self, loader):
        self.net.train()
        total, seen = 0.0, 0
        for inputs, targets in loader:
            loss = nn.functional.smooth_l1_loss(self.net(inputs), targets)
            self.optimizer.zero_grad()
            loss.backward()
            for parameter in self.net.parameters():
                parameter.grad.data.clamp_(-CLIP, CLIP)
            self.optimizer.step()
            total += loss.item() * len(inputs)
            seen += len(inputs)
        return total / seen

    def evaluate(self, loader):
        self.net.eval()
        squares, seen = 0.0, 0
        with torch.no_grad():
            for inputs, targets in loader:
                squares += ((self.net(inputs) - targets) ** 2).sum().item()
                seen += targets.numel()
        self.score = (squares / seen) ** 0.5
        return self.score

    def exploit(self, other):
        self.net.load_state_dict(other.net.state_dict())
        self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))

    def explore(self):
        factor = random.choice([0.8, 1.2])
        for group in self.optimizer.param_groups:
            group["lr"] *= factor
        self.factors.append(factor)


train_loader = DataLoader(TensorDataset(x[:110], y[:110]), batch_size=32, shuffle=True)
valid_loader = DataLoader(TensorDataset(x[110:], y[110:]), batch_size=16)
choices = [(0.3, 0.0), (0.1, 0.1), (0.03, 0.1), (0.003, 0.2)]
population = [Member(index, lr, drop) for index, (lr, drop) in enumerate(choices)]
for generation in range(GENERATIONS):
    losses = [member.train(train_loader) for member in population]
    for member in population:
        member.evaluate(valid_loader)
    ranked = sorted(population, key=lambda member: member.score)
    for member, loss in zip(population, losses):
        print(
            f"{generation}.{member.index}: loss {loss:.4f}, rmse {member.score:.4f}, lr {member.lr:.4f}"
        )
    ranked[-1].exploit(ranked[0])
    ranked[-1].explore()
best = min(population, key=lambda member: member.evaluate(valid_loader))
torch.save(
    {"index": best.index, "score": best.score, "net": best.net.state_dict(), "lr": best.lr},
    "best.pt",
)
with open("factors.json", "w") as file:
    json.dump({member.index: member.factors for member in population}, file)
