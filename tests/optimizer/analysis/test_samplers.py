"""Samplers that must not run ahead of the loop."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.facts import Fact
from torchopt_cli.optimizer.analysis.loading.samplers import sampler_obstacle
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import things
from torch.utils.data import *
class Own(Sampler):
    def __init__(self, data):
        self.order = list(data)
    def __iter__(self):
        self.passes = 1
        return iter(self.order)
    def set_epoch(self, epoch):
        self.epoch = epoch
class Data:
    def __getitem__(self, i):
        return i
own = Own([1])
data = Data()
"""


@pytest.mark.parametrize(
    ("arguments", "later", "obstacle"),
    [
        ("", "", None),
        ("sampler=None", "", None),
        ("sampler=RandomSampler(data)", "print(data.rows)", None),
        ("sampler=DistributedSampler(data) if data else None", "", None),
        ("batch_sampler=BatchSampler(RandomSampler(data), 3, True)", "", None),
        ("sampler=own", "", None),
        ("sampler=own", "own.set_epoch(3)", None),
        ("sampler=own", "own.order.append(3)", "own.order"),
        ("sampler=own", "print(own.passes)", "own.passes"),
        ("batch_sampler=BatchSampler(own, 3, True)", "own.order = []", "own.order"),
        ("sampler=things.Sampler()", "", "its sampler comes from `things.Sampler`"),
        ("batch_sampler=globals()['b']", "", "its batch_sampler cannot be traced"),
    ],
)
def test_obstacle(script: Script, arguments: str, later: str, obstacle: str | None) -> None:
    understood = script(dedent(f"{HEAD}loader = DataLoader(data, {arguments})\n{later}\n"))
    found = sampler_obstacle(understood.resolver, understood.loaders[0])
    told = found.code if isinstance(found, Fact) else found
    assert (told or "").startswith(obstacle or "")
    assert (told is None) == (obstacle is None)
