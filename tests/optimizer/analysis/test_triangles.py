"""Matrices of two values, as masks of attention are made."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.tensors.triangles import Triangle, Triangles

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

Script = Callable[..., TrainingScript]

HEAD = """\
import torch
from torch import nn

n = 5
"""
CAUSAL = [
    "nn.Transformer.generate_square_subsequent_mask(n)",
    "nn.Transformer(8, 2).generate_square_subsequent_mask(n).to('cpu')",
    "torch.triu(torch.ones(n, n), diagonal=1).bool()",
    "torch.ones(n, n).triu(1) == 1",
    "torch.triu(torch.ones((n, n), dtype=torch.bool), 1)",
    "torch.ones(n, n).tril() == 0",
    "~torch.tril(torch.ones(n, n)).to(torch.bool)",
    "torch.logical_not(torch.tril(torch.ones(n, n)))",
    "torch.triu(torch.full((n, n), float('-inf')), diagonal=1)",
    "torch.triu(torch.ones(n, n) * float('-inf'), diagonal=1)",
    "torch.zeros(n, n).masked_fill(torch.ones(n, n).triu(1) > 0, float('-inf'))",
    "torch.ones(n, n).triu().t().bool().logical_not()",
    "(torch.triu(torch.ones(n, n)) == 0).T",
]
OTHERS = [
    "torch.triu(torch.ones(n, n), diagonal=1)",  # adds one to what follows
    "torch.triu(torch.ones(n, n)).bool()",  # hides each from itself, too
    "torch.tril(torch.ones(n, n)).bool()",
    "torch.triu(torch.ones(n, n), diagonal=2).bool()",
    "torch.triu(torch.full((n, n), -1e9), diagonal=1)",
    "torch.zeros(n, n).bool()",
    "torch.triu(torch.ones(3, n, n), diagonal=1).bool()",
    "torch.triu(torch.ones(n, n), diagonal=1).bool().unsqueeze(0)",
    "torch.triu(torch.ones(n, n), diagonal=1).bool() | torch.eye(n).bool()",
]


def found(script: Script, text: str) -> Triangle | None:
    """What the last statement's expression is."""
    understood = script(HEAD + dedent(text))
    last = understood.entry.tree.body[-1]
    assert isinstance(last, ast.Expr)
    return Triangles(understood.resolver).of(last.value, understood.entry)


def is_causal(expression: str) -> bool:
    """Whether PyTorch itself finds that the mask is causal."""
    made = eval(expression, {"torch": torch, "nn": torch.nn, "n": 5})
    return torch.nn.modules.transformer._detect_is_causal_mask(made, None, 5)


@pytest.mark.parametrize("expression", CAUSAL)
def test_causal_masks(script: Script, expression: str) -> None:
    triangle = found(script, expression)
    assert triangle is not None
    assert triangle.hides_what_follows
    assert is_causal(expression)


@pytest.mark.parametrize("expression", OTHERS)
def test_other_masks(script: Script, expression: str) -> None:
    triangle = found(script, expression)
    assert triangle is None or not triangle.hides_what_follows
    assert not is_causal(expression)


@pytest.mark.parametrize(
    "text",
    [
        """
        mask = torch.triu(torch.ones(n, n), diagonal=1)
        mask = mask == 1
        if n > 3:
            mask = mask.cuda()
        mask
        """,
        """
        def make(size):
            mask = (torch.triu(torch.ones(size, size)) == 1).transpose(0, 1)
            return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0), size

        mask, size = make(n)
        mask.contiguous()
        """,
        """
        network = nn.Transformer(8, 2)
        mask = network.generate_square_subsequent_mask(n)
        mask
        """,
    ],
)
def test_masks_by_way_of_variables_and_functions(script: Script, text: str) -> None:
    triangle = found(script, text)
    assert triangle is not None
    assert triangle.hides_what_follows


@pytest.mark.parametrize(
    "text",
    [
        "mask = torch.ones(n, n).triu(1).bool()\nmask[0, 1] = False\nmask",
        "mask = torch.ones(n, n).triu(1).bool()\nmask.fill_(True)\nmask",
        "mask = torch.ones(n, n).triu(1)\nif n > 3:\n    mask = mask.bool()\nmask",
        "def change(m):\n    m.zero_()\nmask = torch.ones(n, n).triu(1).bool()\nchange(mask)\nmask",
        "mask = torch.ones(n, n).triu(1).bool()\nfor i in range(3):\n    mask = ~mask\nmask",
    ],
)
def test_masks_that_may_be_something_else(script: Script, text: str) -> None:
    assert found(script, text) is None


def test_masks_that_are_only_looked_at_in_functions(script: Script) -> None:
    text = """
        def show(m):
            print(m.shape)

        mask = torch.ones(n, n).triu(1).bool()
        show(mask)
        mask
    """
    assert found(script, text) == Triangle(True, False)


def test_zeros_hide_nothing(script: Script) -> None:
    for text in ("torch.zeros((n, n)).type(torch.bool)", "torch.zeros(n, n)"):
        triangle = found(script, text)
        assert triangle is not None
        assert triangle.is_zero
    assert not Triangle(0.0, -math.inf).is_zero
