"""Angles made of a matrix product, as people write them."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.calls.reach import Reached
from torchopt_cli.optimizer.analysis.precision.product_angles import ProductAngles, half_angles
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


def found(understood: TrainingScript) -> tuple[list[str], list[str]]:
    """The products behind the angles of a script that half precision rounds, and those that TF32 does."""
    module = understood.entry
    nodes = [Reached(node, module, True) for node in module.nodes]
    half = half_angles(understood.resolver, nodes, lambda node, _: module.code(node) == "half")
    angles = ProductAngles(understood.resolver)
    tf32 = [place for node in module.nodes if (place := angles.product(node, module)) is not None]
    return [obstacle.code for obstacle in half], [module.code(node) for node, _ in tf32]


@pytest.mark.parametrize(
    ("body", "half", "tf32"),
    [
        ("return torch.sin(6.28 * x @ b)", 1, 1),
        ("turns = (6.28 * x) @ b.t()\nreturn torch.cat([torch.sin(turns), turns.cos()], -1)", 2, 2),
        ("turns = torch.einsum('ni,ij->nj', x, b).float()\nreturn turns.view(-1).sin()", 1, 1),
        ("turns = (x @ b).transpose(1, 2)\nreturn torch.cat((turns, turns), dim=-1).cos()", 1, 1),
        ("turns = x @ b\nturns *= 6.28\nturns += 1\nreturn turns.cos()", 1, 1),
        ("turns = x @ b\nreturn [wave(turns) for wave in (torch.sin, torch.cos)]", 1, 1),
        ("turns = torch.einsum('i,j->ij', x, b)\nreturn turns.sin()", 1, 0),
        ("turns = torch.einsum('i,j', x, b)\nreturn turns.sin()", 1, 1),
        ("return torch.sin(6.28 * nn.functional.linear(x, b))", 1, 1),
        ("turns, _ = x @ b, 3\nreturn turns.sin()", 1, 1),
        ("_, turns = x @ b, 3\nreturn turns.sin()", 0, 0),
        ("return torch.sin(torch.outer(x, b))", 0, 0),
        ("return torch.sin(x[:, None] * b[None])", 0, 0),
        ("return torch.sin(torch.relu(x @ b))", 0, 0),
        ("return (x @ b).tanh()", 0, 0),
        ("return math.sin(3)", 0, 0),
        ("return torch.arange(9999, dtype=half.dtype).sin()", 1, 0),
        ("return torch.arange(9, dtype=half.dtype).sin()", 0, 0),
        ("return torch.arange(9999, dtype=x.dtype).sin()", 0, 0),
        ("return (torch.arange(9999).to(half.dtype)[:, None] * b).sin()", 1, 0),
        ("return torch.outer(torch.arange(9999).to(half), b).sin()", 1, 0),
        ("return torch.outer(torch.arange(9999).to(half.device), b).sin()", 0, 0),
        ("return torch.outer(torch.arange(9999).type_as(half), b).sin()", 1, 0),
        ("return torch.outer(half.new_tensor(range(9999)), b).sin()", 1, 0),
    ],
)
def test_angles(script: Script, body: str, half: int, tf32: int) -> None:
    head = "import math\nimport torch\nfrom torch import nn\n\n\ndef encode(x, b, half):\n"
    understood = script(head + indent(dedent(body), "    ") + "\n")
    assert tuple(map(len, found(understood))) == (half, tf32)


ROTARY = """
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, frequencies):
        super().__init__()
        self.frequencies = frequencies
        self.known = None

    {code}


def turn(x, turns):
    return x * turns.cos()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary(torch.ones(4))

    def forward(self, x):
        {use}
"""


@pytest.mark.parametrize(
    ("code", "use"),
    [
        (
            "def forward(self, t):\n        return torch.einsum('i,j->ij', t, self.frequencies)",
            "return turn(x, self.rotary(x.shape[1]))",
        ),
        (
            "def forward(self, t):\n        return t, torch.einsum('i,j->ij', t, self.frequencies)",
            "t, turns = self.rotary(x.shape[1])\n        return turn(x, turns)",
        ),
        (
            "def forward(self, t):\n        self.known = torch.einsum('i,j->ij', t, self.frequencies)\n"
            "        return self.known.sin()",
            "return x * self.rotary(x.shape[1])",
        ),
    ],
    ids=["returned", "a part of what is returned", "kept"],
)
def test_angles_that_are_handed_on(script: Script, code: str, use: str) -> None:
    half, tf32 = found(script(ROTARY.format(code=code, use=use)))
    assert half == ["torch.einsum('i,j->ij', t, self.frequencies)"]
    assert tf32 == []


def test_another_part_of_what_is_returned_is_no_angle(script: Script) -> None:
    code = (
        "def forward(self, t):\n        return t * 2, torch.einsum('i,j->ij', t, self.frequencies)"
    )
    use = "turns, weights = self.rotary(x.shape[1])\n        return turn(x, turns) @ weights"
    assert found(script(ROTARY.format(code=code, use=use))) == ([], [])


SINE = """
import torch
from torch import nn


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(30 * x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.sine = Sine()

    def forward(self, x):
        return {forward}


{model}
"""


@pytest.mark.parametrize(
    ("forward", "model", "product"),
    [
        ("self.sine(self.linear(x))", "Layer()", "self.linear(x)"),
        ("x", "nn.Sequential(nn.Linear(2, 8), Sine(), nn.ReLU())", "nn.Linear(2, 8)"),
        ("x", "layers = [nn.Linear(2, 8)]\nlayers.append(Sine())\nnn.Sequential(*layers)", "nn.Linear(2, 8)"),
        ("self.linear(x)", "nn.Sequential(Layer(), Sine())", "self.linear(x)"),
        ("x", "nn.Sequential(Sine(), nn.Linear(2, 8))", None),
        ("x", "nn.Sequential(nn.Linear(2, 8), nn.ReLU(), Sine())", None),
    ],
)  # fmt: skip
def test_sines_of_what_layers_return(
    script: Script, forward: str, model: str, product: str | None
) -> None:
    wanted = [product] if product is not None else []
    assert found(script(SINE.format(forward=forward, model=model))) == (wanted, wanted)
