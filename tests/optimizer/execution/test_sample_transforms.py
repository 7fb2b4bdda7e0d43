"""Augmentations that are modules draw what their sample does, wherever the sample is made, and are no networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import Observations

pytestmark = pytest.mark.torch

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


class Rows(Dataset):
    noise = Noise()

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.noise(torch.full((2,), float(index)))


rows = Rows()
net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in DataLoader(rows, batch_size=3, num_workers=WORKERS):
    optimizer.zero_grad()
    net(x).mean().backward()
    optimizer.step()
with torch.set_grad_enabled(GRADIENTS):
    for x in DataLoader(rows, batch_size=6, num_workers=WORKERS):
        print(x.tolist())
"""


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_they_draw_alike_with_gradients_and_without_and_in_workers(
    project: Callable[..., Path],
    observe: Callable[..., Observations],
    gradients: bool,
    workers: int,
) -> None:
    def observed(gradients: bool, workers: int) -> Observations:
        text = SCRIPT.replace("GRADIENTS", str(gradients)).replace("WORKERS", str(workers))
        return observe(project({"train.py": text}), steps=3)

    one, other = observed(True, 0), observed(gradients, workers)
    assert one.stdout == other.stdout
    assert {call.module for call in (*one.training_calls, *one.eval_calls)} == {"Linear"}
