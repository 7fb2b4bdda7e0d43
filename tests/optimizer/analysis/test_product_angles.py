"""Angles made of a matrix product, as people write them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.product_angles import is_product_angle
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return torch.sin(6.28 * x @ b)", 1),
        ("turns = (6.28 * x) @ b.t()\nreturn torch.cat([torch.sin(turns), turns.cos()], -1)", 2),
        ("turns = torch.einsum('ni,ij->nj', x, b).float()\nreturn turns.view(-1).sin()", 1),
        ("turns = (x @ b).transpose(1, 2)\nreturn torch.cat((turns, turns), dim=-1).cos()", 1),
        ("turns = torch.einsum('i,j->ij', x, b)\nreturn turns.sin()", 0),
        ("return torch.sin(x[:, None] * b[None])", 0),
        ("return (x @ b).tanh()", 0),
        ("return math.sin(3)", 0),
    ],
)
def test_angles(script: Script, body: str, found: int) -> None:
    head = "import math\nimport torch\n\n\ndef encode(x, b):\n"
    understood = script(head + indent(dedent(body), "    ") + "\n")
    nodes = understood.entry.nodes_of(ast.Call)
    angles = [n for n in nodes if is_product_angle(understood.resolver, n, understood.entry)]
    assert len(angles) == found
