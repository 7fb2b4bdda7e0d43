"""An optimizer of its own (Lion) inside sharpness-aware minimization, weight normalization, and a learning-rate finder."""

import copy

import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import Optimizer


class Lion(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class SAM:
    def __init__(self, model, base, rho=0.05):
        self.params, self.base, self.rho = list(model.parameters()), base, rho

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm()
        self.away = [p.grad * (self.rho / (norm + 1e-12)) for p in self.params]
        for p, e in zip(self.params, self.away):
            p.add_(e)
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p, e in zip(self.params, self.away):
            p.sub_(e)
        self.base.step()
        self.base.zero_grad()


def find_lr(model, optimizer, x, y, criterion):
    weights = copy.deepcopy(model.state_dict())
    best, chosen = float("inf"), None
    for rate in (1e-4, 1e-3, 1e-2):
        optimizer.param_groups[0]["lr"] = rate
        for _ in range(2):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            loss = criterion(model(x), y).item()
        if loss < best:
            best, chosen = loss, rate
        model.load_state_dict(weights)
    optimizer.zero_grad()
    optimizer.state.clear()
    optimizer.param_groups[0]["lr"] = chosen
    return chosen


def main():
    torch.manual_seed(8)
    x = torch.randn(80, 6)
    y = torch.sin(x.sum(1, keepdim=True))
    model = nn.Sequential(weight_norm(nn.Linear(6, 32)), nn.GELU(), nn.Linear(32, 1))
    optimizer = Lion(model.parameters(), lr=1e-3, weight_decay=0.1)
    criterion = nn.SmoothL1Loss()
    rate = find_lr(model, optimizer, x[:64], y[:64], criterion)
    print("learning rate", rate)
    sam = SAM(model, optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.9**s)
    for step in range(12):
        batch = torch.randperm(64)[:24]
        loss = criterion(model(x[batch]), y[batch])
        loss.backward()
        sam.climb()
        criterion(model(x[batch]), y[batch]).backward()
        sam.descend()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        print("held out", criterion(model(x[64:]), y[64:]).item())


if __name__ == "__main__":
    main()
