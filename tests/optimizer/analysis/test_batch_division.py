"""Numbers in a step that may be the batch size."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.training.batch_division import counted_on

Script = Callable[..., TrainingScript]

LOOP = """
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(3, 1)
sgd = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(data, 2):
    loss = (model(x) - y).square().mean()
    WRITTEN
    loss.backward()
    sgd.step()
"""


def may_be_size(script: Script, written: str) -> bool:
    understood = script(LOOP.replace("WRITTEN", written))
    (loop,) = understood.training_loops
    return counted_on(understood.resolver, 2, loop) is not None


@pytest.mark.parametrize(
    "written",
    [
        "loss = loss / 2",
        "x = x.view(2, -1)",
        "x = x.view((2, -1))",
        "x = x.expand(2, 3)",
        "seen += 2",
        "x = split(x, [1, 2])",
        "sizes = (1, 2)\n    y = x.sum(dim=sizes).view(sizes)",
        "x = 2 ** x",
    ],
)
def test_what_may_be_the_batch_size(script: Script, written: str) -> None:
    assert may_be_size(script, written)


@pytest.mark.parametrize(
    "written",
    [
        "x = x[2]",
        "x = x ** 2",
        "x = torch.pow(x, 2)",
        "x = x.sum((1, 2))",
        "x = torch.cat([x, y], 2)",
        "x = x.permute(0, 2, 1)",
        "x = nn.functional.softmax(x, dim=2)",
        "x = x.norm(p=2, dim=[1, 2])",
        "axes = (1, 2)\n    y = x.sum(dim=axes) / x.mean(axes)",
        "if step % 2 == 0: print(loss)",
    ],
)
def test_what_is_something_else(script: Script, written: str) -> None:
    assert not may_be_size(script, written)
