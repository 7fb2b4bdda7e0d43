"""A physics-informed network for a heat equation with an unknown diffusivity: double backward, Adam, then L-BFGS, in float64."""

import csv
import json
import math

import numpy as np
import torch
import torch.nn as nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(11)
rng = np.random.default_rng(11)

NU = 0.2


class Sine(nn.Module):
    def __init__(self, omega):
        super().__init__()
        self.omega = omega

    def forward(self, x):
        return torch.sin(self.omega * x)


class Field(nn.Module):
    """A SIREN over (x, t), with inputs scaled by statistics of the training points."""

    def __init__(self, width=16, omega=3.0):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("std", torch.ones(2))
        self.net = nn.Sequential(
            nn.Linear(2, width),
            Sine(omega),
            nn.Linear(width, width),
            Sine(1.0),
            nn.Linear(width, 1),
        )
        self.log_nu = nn.Parameter(torch.tensor(math.log(0.05)))
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                bound = math.sqrt(6 / layer.in_features) / omega
                nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, xt):
        return self.net((xt - self.mean) / self.std).squeeze(-1)


def solution(x, t):
    return np.exp(-NU * math.pi**2 * t) * np.sin(math.pi * x)


def to_tensor(*columns):
    return torch.from_numpy(np.stack(columns, axis=1))


class Problem:
    def __init__(self, interior=48, boundary=12, sensors=10):
        x, t = rng.uniform(-1, 1, interior), rng.uniform(0, 1, interior)
        self.interior = to_tensor(x, t)
        t = rng.uniform(0, 1, boundary)
        side = np.where(np.arange(boundary) % 2 == 0, -1.0, 1.0)
        self.boundary = to_tensor(side, t)
        x = np.linspace(-1, 1, boundary)
        self.initial = to_tensor(x, np.zeros(boundary))
        self.initial_values = torch.from_numpy(solution(x, 0.0))
        x, t = rng.uniform(-1, 1, sensors), rng.uniform(0, 1, sensors)
        self.sensors = to_tensor(x, t)
        noise = rng.normal(0, 0.01, sensors)
        self.readings = torch.from_numpy(solution(x, t) + noise)

    def residual(self, model, points):
        xt = points.clone().requires_grad_(True)
        u = model(xt)
        du = torch.autograd.grad(u.sum(), xt, create_graph=True)[0]
        u_x, u_t = du[:, 0], du[:, 1]
        u_xx = torch.autograd.grad(u_x.sum(), xt, create_graph=True)[0][:, 0]
        return u_t - model.log_nu.exp() * u_xx

    def losses(self, model, points):
        physics = self.residual(model, points).pow(2).mean()
        edge = model(self.boundary).pow(2).mean()
        start = (model(self.initial) - self.initial_values).pow(2).mean()
        data = (model(self.sensors) - self.readings).pow(2).mean()
        return physics, edge, start, data

    def loss(self, model, weights, points):
        return sum(w * part for w, part in zip(weights, self.losses(model, points)))


def adapt_weights(model, problem, weights, points):
    """Weights that bring the gradients of all parts to one size, smoothed."""
    parameters = [p for p in model.net.parameters()]
    norms = []
    for part in problem.losses(model, points):
        grads = torch.autograd.grad(part, parameters, allow_unused=True)
        norms.append(sum(g.abs().sum().item() for g in grads if g is not None))
    return [0.9 * w + 0.1 * norms[0] / n for w, n in zip(weights, norms)]


def evaluate(model):
    """Relative L2 and maximal errors on a grid, by rows of time."""
    model.eval()
    squares, norm, worst = 0.0, 0.0, 0.0
    x = np.linspace(-1, 1, 21)
    with torch.no_grad():
        for t in np.linspace(0, 1, 6):
            truth = torch.from_numpy(solution(x, t))
            error = model(to_tensor(x, np.full_like(x, t))) - truth
            squares += error.pow(2).sum().item()
            norm += truth.pow(2).sum().item()
            worst = max(worst, error.abs().max().item())
    model.train()
    return math.sqrt(squares / norm), worst


def main():
    model, problem = Field(), Problem()
    model.mean.copy_(problem.interior.mean(0))
    model.std.copy_(problem.interior.std(0))
    groups = [
        {"params": model.net.parameters(), "lr": 5e-3},
        {"params": [model.log_nu], "lr": 5e-2},
    ]
    adam = torch.optim.Adam(groups, betas=(0.9, 0.99))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(adam, gamma=0.98)
    weights = [1.0, 1.0, 1.0, 1.0]
    points = problem.interior
    rows, best = [], math.inf
    for step in range(24):
        if step % 6 == 0:
            weights = adapt_weights(model, problem, weights, points)
        adam.zero_grad()
        loss = problem.loss(model, weights, points)
        loss.backward()
        adam.step()
        scheduler.step()
        if step % 8 == 7:
            error, worst = evaluate(model)
            rows.append((step + 1, loss.item(), error, worst, model.log_nu.exp().item()))
            print(f"adam {step + 1}: loss {loss.item():.10f} error {error:.8f} nu {rows[-1][-1]:.8f}")
            if error < best:
                best = error
                torch.save(model.state_dict(), "best.pt")

    lbfgs = torch.optim.LBFGS(
        model.parameters(), lr=0.5, max_iter=5, history_size=10, line_search_fn="strong_wolfe"
    )
    for step in range(4):

        def closure():
            lbfgs.zero_grad()
            loss = problem.loss(model, weights, points)
            loss.backward()
            return loss

        loss = lbfgs.step(closure)
        error, worst = evaluate(model)
        rows.append((24 + step + 1, loss.item(), error, worst, model.log_nu.exp().item()))
        print(f"lbfgs {step + 1}: loss {loss.item():.10f} error {error:.8f} nu {rows[-1][-1]:.8f}")
        if error < best:
            best = error
            torch.save(model.state_dict(), "best.pt")

    with open("history.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "l2", "worst", "nu"])
        writer.writerows(rows)
    model.load_state_dict(torch.load("best.pt"))
    error, worst = evaluate(model)
    with open("summary.json", "w") as file:
        json.dump({"l2": error, "worst": worst, "nu": model.log_nu.exp().item()}, file)


if __name__ == "__main__":
    main()
