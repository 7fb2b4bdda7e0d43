"""Sines of what layers return, and how large their angles are."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

from torchopt_cli.optimizer.analysis.calls.reach import Reached
from torchopt_cli.optimizer.analysis.precision.product_angles import ProductAngles, half_angles
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

BOTH = (True, True)
"""Half precision and TF32 hold back."""
HALF = (True, False)
NEITHER = (False, False)

NETWORK = """
import math
import sys
import torch
import torch.nn.functional as F
from torch import nn


class Network(nn.Module):
    def __init__(self, omega=30.0, gentle=0.5, given=float(sys.argv[1])):
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.norm = nn.LayerNorm(64)
        self.conv = nn.Conv1d(64, 64, 3)
        self.fc = nn.Linear(64, 64)
        self.other = nn.Linear(64, 64)
        self.weighted = nn.utils.weight_norm(nn.Linear(64, 64))
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.blocks = nn.ModuleList()
        for _ in range(3):
            self.blocks.append(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1)))
        self.lost = nn.ModuleList(read())
        self.alpha = nn.Parameter(torch.ones(64))
        self.log_alpha = nn.Parameter(torch.zeros(64))
        self.drawn = nn.Parameter(torch.randn(64) * 30)
        self.frequencies = torch.randn(64, 64)
        self.sine = torch.sin
        self.omega, self.gentle, self.given = omega, gentle, given

    def forward(self, x):
        h = torch.relu(self.norm(self.first(x)))
{body}


Network()(read())
"""


def held_back(understood: TrainingScript) -> tuple[bool, bool]:
    """Whether half precision and TF32 leave the angles of a script alone."""
    module = understood.entry
    nodes = [Reached(node, module, True) for node in module.nodes]
    half = list(half_angles(understood.resolver, nodes, lambda node, module: False))
    angles = ProductAngles(understood.resolver)
    return bool(half), any(angles.product(node, module) for node in module.nodes)


@pytest.mark.parametrize(
    ("body", "held"),
    [
        ("return torch.sin(self.fc(h))", NEITHER),
        ("return self.fc(h).cos()", NEITHER),
        ("return torch.sin(self.fc(h) * 0.5 + 0.1)", NEITHER),
        ("return torch.sin(self.gentle * self.fc(h))", NEITHER),
        ("return torch.sin(self.weighted(h))", NEITHER),
        ("return self.sine(self.fc(h))", NEITHER),
        ("return torch.sin(self.conv(h))", NEITHER),
        ("return torch.sin(self.fc(torch.tanh(x)))", NEITHER),
        ("return torch.sin(self.fc(torch.rand(3, 64)))", NEITHER),
        ("return torch.sin(self.fc(torch.linspace(-1, 1, 64)))", NEITHER),
        ("return torch.sin(self.fc(h + self.other(h)) / 2)", NEITHER),
        ("y = self.fc(h)\nreturn y + torch.sin(self.alpha * y) ** 2", NEITHER),
        ("return torch.sin(self.fc(h) * torch.exp(self.log_alpha))", NEITHER),
        ("for layer in self.layers:\n    h = torch.sin(layer(h))\nreturn h", NEITHER),
        ("for block in self.blocks:\n    h = h + torch.sin(block(h))\nreturn h", NEITHER),
        ("return torch.sin(2 * math.pi * self.fc(h))", HALF),
        ("return torch.sin(8 * self.fc(h))", HALF),
        ("return torch.sin(self.fc(4 * h) * 2)", HALF),
        ("for layer in self.layers:\n    h = torch.sin(7 * layer(h))\nreturn h", HALF),
        ("return torch.sin(30 * self.fc(h))", BOTH),
        ("return torch.sin(30 * self.conv(h))", HALF),
        ("return torch.sin(self.omega * self.fc(h))", BOTH),
        ("return torch.sin(self.given * self.fc(h))", BOTH),
        ("return torch.sin(self.fc(h) / 0.01)", BOTH),
        ("return torch.sin(self.fc(h) * self.other(h) * x)", BOTH),
        ("return torch.sin(self.fc(h) + 100)", BOTH),
        ("return torch.sin(self.fc(x))", BOTH),
        ("return torch.sin(self.fc(torch.arange(1000.0)))", BOTH),
        ("return torch.sin(h @ self.frequencies)", BOTH),
        ("return torch.sin(F.linear(h, self.frequencies))", BOTH),
        ("return torch.sin(self.drawn * self.fc(h))", BOTH),
        ("return torch.sin(30 * self.weighted(h))", BOTH),
        ("return self.sine(30 * self.fc(h))", BOTH),
        ("y = self.fc(h)\nfor _ in range(8):\n    y = 2 * y\nreturn y.sin()", BOTH),
        ("y = self.fc(h)\ny *= 30\nreturn y.sin()", BOTH),
        ("for layer in self.layers:\n    h = torch.sin(30 * layer(h))\nreturn h", BOTH),
        ("for i, layer in enumerate(self.layers[:-1]):\n    h = torch.sin(30 * layer(h))\nreturn h", BOTH),
        ("for block in self.blocks:\n    h = torch.sin(30 * block(h))\nreturn h", BOTH),
        ("for layer in self.lost:\n    h = torch.sin(layer(h))\nreturn h", BOTH),
        ("return torch.sin(30 * self.norm(self.fc(h)))", NEITHER),
    ],
)  # fmt: skip
def test_angles_of_layers(script: Script, body: str, held: tuple[bool, bool]) -> None:
    assert held_back(script(NETWORK.format(body=indent(body, "        ")))) == held


SIREN = """
import numpy as np
import torch
from torch import nn


class SineLayer(nn.{base}):
    def __init__(self, size_in, size_out, omega_0={omega}):
        {init}
        self.omega_0 = omega_0
        with torch.no_grad():
            {weights}

    def forward(self, x):
        return torch.sin(self.omega_0 * {product})


net = nn.Sequential(nn.BatchNorm1d(8), SineLayer(8, 64), SineLayer(64, 64{second}), nn.Linear(64, 1))
net(read())
"""
HELD = {
    "base": "Module",
    "omega": "1.0",
    "init": "super().__init__()\n        self.linear = nn.Linear(size_in, size_out)",
    "weights": "pass",
    "product": "self.linear(x)",
    "second": "",
}
DERIVED = {"base": "Linear", "init": "super().__init__(size_in, size_out)"}


@pytest.mark.parametrize(
    ("changed", "held"),
    [
        ({}, NEITHER),
        ({"omega": "5.0"}, HALF),
        ({"omega": "30"}, BOTH),
        ({"omega": "read()"}, BOTH),
        ({"second": ", 30"}, BOTH),
        ({"second": ", omega_0=0.5"}, NEITHER),
        ({"weights": "self.linear.weight.uniform_(-np.sqrt(6 / size_in), np.sqrt(6 / size_in))"}, BOTH),
        ({"weights": "self.linear.weight.data.mul_(30)"}, BOTH),
        ({"weights": "nn.init.uniform_(self.linear.weight, -30, 30)"}, BOTH),
        ({"weights": "nn.init.xavier_uniform_(self.linear.weight)"}, NEITHER),
        ({**DERIVED, "product": "super().forward(x)"}, NEITHER),
        ({**DERIVED, "product": "super().forward(x)", "omega": "30"}, BOTH),
        ({**DERIVED, "product": "nn.functional.linear(x, self.weight)"}, BOTH),
    ],
)  # fmt: skip
def test_sine_layers(script: Script, changed: dict[str, str], held: tuple[bool, bool]) -> None:
    assert held_back(script(SIREN.format(**HELD | changed))) == held


def test_positions_that_go_into_a_layer_as_they_are(script: Script) -> None:
    text = """
    import torch
    from torch import nn

    class Time(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(1, 64)

        def forward(self, t):
            return torch.sin(self.fc(t))

    time = Time()
    time(torch.{times})
    """
    assert held_back(script(text.format(times="randint(0, 1000, (8, 1)).float()"))) == BOTH
    assert held_back(script(text.format(times="rand(8, 1)"))) == NEITHER


@pytest.mark.torch
@pytest.mark.parametrize(("factor", "most"), [(1.0, 1.5), (8.0, 6.0)])
def test_a_factor_of_one_rounds_a_sine_as_a_relu_is_rounded(factor: float, most: float) -> None:
    import torch

    torch.manual_seed(0)
    layer, x = torch.nn.Linear(256, 256), torch.randn(1024, 256)

    def error(function: Callable[[torch.Tensor], torch.Tensor]) -> float:
        with torch.no_grad():
            exact = function(layer(x))
            with torch.autocast("cpu", torch.bfloat16):
                rounded = function(layer(x)).float()
        return float((rounded - exact).norm() / exact.norm())

    ratio = error(lambda y: torch.sin(factor * y)) / error(torch.relu)
    assert 0.5 < ratio < most
    assert factor == 1 or ratio > 3
