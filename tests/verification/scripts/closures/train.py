"""LBFGS with a closure, then Adam on one part: two optimizers over the same weights, and outputs in a dataclass."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Output:
    mean: torch.Tensor
    log_variance: torch.Tensor


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 20), nn.Tanh())
        self.mean = nn.Linear(20, 1)
        self.log_variance = nn.Linear(20, 1)

    def forward(self, x):
        h = self.body(x)
        return Output(self.mean(h).squeeze(-1), self.log_variance(h).squeeze(-1))


def likelihood(out, y):
    return 0.5 * (out.log_variance + (y - out.mean) ** 2 * torch.exp(-out.log_variance)).mean()


torch.manual_seed(2)
x = torch.randn(120, 6)
y = x[:, 0] * x[:, 1] + 0.1 * torch.randn(120)
model = Regressor()

lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=5)
for step in range(6):

    def closure():
        lbfgs.zero_grad()
        out = model(x[:100])
        loss = ((y[:100] - out.mean) ** 2).mean() + 1e-4 * (model.mean.weight**2).sum()
        loss.backward()
        return loss

    print(f"lbfgs {step}: {lbfgs.step(closure).item():.5f}")

adam = torch.optim.Adam(model.log_variance.parameters(), lr=0.02, betas=(0.8, 0.95))
for epoch in range(6):
    model.train()
    for start in range(0, 100, 50):
        adam.zero_grad()
        loss = likelihood(model(x[start : start + 50]), y[start : start + 50])
        loss.backward()
        adam.step()
    model.eval()
    with torch.no_grad():
        held_out = likelihood(model(x[100:]), y[100:])
    print(f"epoch {epoch}: {held_out.item():.5f}")
torch.save(model.state_dict(), "regressor.pt")
