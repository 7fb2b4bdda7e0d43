"""Weights that are drawn in a size of the script's own."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

from torchopt_cli.optimizer.analysis.precision.drawn_weights import draws_weights
from torchopt_cli.optimizer.analysis.script import TrainingScript

HEAD = """
import math
import torch
from torch import nn
from torch.nn import init

layer, other = nn.Linear(8, 8), nn.Linear(8, 8)


def start(w, std=0.02):
    w.data.normal_(0, std)


def run(decay, noise):
"""


@pytest.mark.parametrize(
    "body",
    [
        "layer.weight.data.mul_(30)",
        "layer.weight.data.mul_(decay)",
        "layer.weight.data.div_(0.1)",
        "layer.weight.uniform_(-math.sqrt(6 / 8), math.sqrt(6 / 8))",
        "layer.weight.data.normal_()",
        "layer.weight.data.copy_(noise)",
        "weight = layer.weight\nweight.normal_(0, 1)",
        "start(layer.weight, 30)",
        "layer.weight = nn.Parameter(torch.randn(8, 8))",
        "layer.weight.data = noise",
        "layer.weight.data[:, 0] = noise",
        "init.uniform_(layer.weight, -30, 30)",
        "init.uniform_(layer.weight)",
        "init.normal_(layer.weight, std=decay)",
        "init.xavier_uniform_(layer.weight, gain=10)",
        "init.constant_(layer.weight, 30)",
        "init.sparse_(layer.weight, 0.1)",
        "for p in layer.parameters():\n    p.data.mul_(30)",
        "for name, p in layer.named_parameters():\n    p.data.uniform_(-1, 1)",
    ],
)
def test_weights_of_another_size(script: Callable[..., TrainingScript], body: str) -> None:
    assert draws_weights(script(HEAD + indent(body, "    ") + "\n").resolver) is not None


@pytest.mark.parametrize(
    "body",
    [
        "layer.weight.data.mul_(0.5)",
        "layer.weight.data.normal_(0, 0.02)",
        "start(layer.weight)",
        "layer.apply(start)",
        "init.kaiming_normal_(layer.weight, nonlinearity='relu')",
        "init.xavier_uniform_(layer.weight)",
        "init.xavier_uniform_(layer.weight, gain=init.calculate_gain('tanh'))",
        "init.orthogonal_(layer.weight, math.e / 2)",
        "init.uniform_(layer.weight, -0.05, 0.05)",
        "init.trunc_normal_(layer.weight, std=0.02)",
        "init.constant_(layer.bias, 0)",
        "for p, q in zip(layer.parameters(), other.parameters()):\n    p.data.mul_(decay).add_(q.data)",
        "noise.uniform_(-1, 1)",
        "torch.empty(3).normal_()",
        "loss = noise.mul_(30)",
    ],
)
def test_weights_of_the_same_size(script: Callable[..., TrainingScript], body: str) -> None:
    assert draws_weights(script(HEAD + indent(body, "    ") + "\n").resolver) is None
