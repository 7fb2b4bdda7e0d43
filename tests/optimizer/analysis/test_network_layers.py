"""Layers and operations, wherever a network gets them from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.networks.network_layers import network_layers
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("code", "counts"),
    [
        ("net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(2, 2))", (1, 0, 1)),
        ("def block(n):\n    return nn.Conv2d(n, n, 3)\nnet = nn.Sequential(block(1))", (0, 0, 1)),
        ("import torchvision\nnet = torchvision.models.resnet50()", (0, 0, 1)),
        ("import torchvision\nnet = torchvision.models.vit_b_16()", (0, 0, 0)),
        ("net = nn.TransformerEncoderLayer(8, 2)", (0, 1, 0)),
        (
            "class Net(nn.Module):\n    def forward(self, x):\n        return x @ x.mm(x)\nnet = Net()",
            (0, 2, 0),
        ),
        (
            "class Part(nn.Module):\n    def __init__(self):\n        self.fc = nn.Linear(1, 1)\n"
            "class Net(nn.Module):\n    def __init__(self):\n        self.part = Part()\nnet = Net()",
            (1, 0, 0),
        ),
    ],
)
def test_counts(script: Script, code: str, counts: tuple[int, int, int]) -> None:
    understood = script("from torch import nn\n" + code)
    layers = network_layers(understood.resolver, understood.models)
    assert (len(layers.linear), len(layers.products), len(layers.convolutions)) == counts
