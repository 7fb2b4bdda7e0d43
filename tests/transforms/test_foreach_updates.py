"""foreach-updates: loops over parameters become calls over lists where that provably changes no number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Check = Callable[..., None]

NETWORKS = """\
import copy

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
tau = 0.005


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


net = Critic(8).to(device)
target = copy.deepcopy(net)
optimizer = torch.optim.Adam(net.parameters())
"""
STEPS = """
for step in range(4):
    x = torch.randn(16, 4, device=device)
    with torch.no_grad():
        wanted = target(x)
    loss = nn.functional.mse_loss(net(x), wanted + 1)
    optimizer.zero_grad()
    loss.backward()
    {clip}
    optimizer.step()
    {update}
"""
PAIR = "for p, t in zip(net.parameters(), target.parameters()):\n        "
SOFT = PAIR + "t.data.copy_(tau * p.data + (1 - tau) * t.data)"
SOFT_AFTER = """\
params = [p.data for p in net.parameters()]
    targets = [t.data for t in target.parameters()]
    updates = torch._foreach_mul(params, tau)
    torch._foreach_mul_(targets, 1 - tau)
    torch._foreach_add_(targets, updates)"""
LISTS = """\
params = [p.data for p in net.parameters()]
    targets = [t.data for t in target.parameters()]
    """


def script(
    update: str = "pass", clip: str = "pass", networks: str = NETWORKS, steps: str = STEPS
) -> str:
    return networks + steps.format(update=update, clip=clip)


@pytest.mark.parametrize(
    "update",
    [
        SOFT,
        PAIR + "t.data.copy_((1 - tau) * t.data + tau * p.data)",
        PAIR + "t.data.copy_(t.data * (1 - tau) + p.data * tau)",
    ],
)
def test_a_weighted_sum_copied(check_transformed: Check, update: str) -> None:
    check_transformed(script(update), script(SOFT_AFTER))
