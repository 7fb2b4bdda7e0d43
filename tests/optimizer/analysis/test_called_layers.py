"""Which layers a call may run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.networks.called_layers import called_layers, library_layer
from torchopt_cli.optimizer.analysis.script import TrainingScript

from .conftest import questions

SCRIPT = """
from torch import nn


class Own(nn.Linear):
    pass


class Network(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
        layers = []
        for _ in range(3):
            layers.append(nn.Linear(8, 8))
        layers += [nn.GELU()]
        self.listed = nn.ModuleList(layers)
        self.written = nn.ModuleList([nn.Linear(8, 8), nn.ReLU()])
        self.pairs = nn.ModuleList([nn.ModuleList([nn.Linear(8, 8), nn.ReLU()]) for _ in range(3)])
        self.appended = nn.ModuleList()
        self.appended.append(nn.Conv1d(8, 8, 1))
        self.named = nn.ModuleDict({{"a": nn.Linear(8, 8)}})
        self.sequence = nn.Sequential(nn.ReLU(), nn.Linear(8, 8), nn.Dropout())
        self.unpacked = nn.Sequential(*layers)
        self.weighted = nn.utils.weight_norm(nn.Linear(8, 8))
        self.own = Own(8, 8)
        self.plain = [nn.Tanh()]
        self.lost = nn.ModuleList(read())

    def forward(self, x):
        for index, layer in enumerate(self.listed):
            pass
        for layer_of_two, _ in zip(self.written, self.appended):
            pass
        for inner, _ in self.pairs:
            pass
        for child in self.listed.children():
            pass
        for name, named_child in self.sequence.named_children():
            pass
        ASK({asked})


Network()(read())
"""


@pytest.mark.parametrize(
    ("asked", "layers"),
    [
        ("layer", {"Linear", "GELU"}),
        ("layer_of_two", {"Linear", "ReLU"}),
        ("inner", {"Linear", "ReLU"}),
        ("child", {"Linear", "GELU"}),
        ("named_child", {"ReLU", "Linear", "Dropout"}),
        ("self.listed[0]", {"Linear", "GELU"}),
        ("self.appended[-1]", {"Conv1d"}),
        ("self.named['a']", {"Linear"}),
        ("self.sequence", {"Linear"}),
        ("self.sequence[0]", {"ReLU", "Linear", "Dropout"}),
        ("self.unpacked", {"Linear", "GELU"}),
        ("self.weighted", {"Linear"}),
        ("self.own", {"Linear"}),
        ("self.plain[0]", {"Tanh"}),
        ("super().forward", {"Linear"}),
        ("self.lost[0]", {None}),
        ("x", {None}),
    ],
)
def test_layers(script: Callable[..., TrainingScript], asked: str, layers: set[str | None]) -> None:
    understood = script(SCRIPT.format(asked=asked))
    ((node, module),) = questions(understood)
    found = called_layers(understood.resolver, node, module)
    assert {library_layer(understood.resolver, value) for value in found} == layers
