"""Which numbers an expression may be."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.precision.possible_numbers import possible_numbers
from torchopt_cli.optimizer.analysis.script import TrainingScript

from .conftest import questions

FLOAT32_MAX = 3.4028234663852886e38

SCRIPT = """
import argparse
import math
import sys
import numpy as np
import torch

NEGATIVE = -1e9
HALVED = NEGATIVE / 2
LOW = {{"low": -1e9}}
LIMITS = torch.finfo(torch.float32)
parser = argparse.ArgumentParser()
parser.add_argument("--eps", type=float, default=1e-12)
args = parser.parse_args()


class Layer:
    lowest = -1e30

    def __init__(self, eps=1e-9):
        self.eps = eps

    def run(self, x, floor=1e-8):
        ASK({asked})


Layer().run(1.0)
"""


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ("-1e9", {-1e9}),
        ("NEGATIVE", {-1e9}),
        ("-NEGATIVE", {1e9}),
        ("HALVED", {-5e8}),
        ("self.lowest", {-1e30}),
        ("self.eps", {1e-9}),
        ("floor", {1e-8}),
        ("args.eps", {1e-12}),
        ("floor if x else -1e9", {1e-8, -1e9}),
        ("float('-inf')", {-math.inf}),
        ("torch.tensor(-1e9)", {-1e9}),
        ("float(NEGATIVE)", {-1e9}),
        ("torch.finfo(torch.float32).min", {-FLOAT32_MAX}),
        ("torch.finfo(torch.float).min / 2", {-FLOAT32_MAX / 2}),
        ("-torch.finfo().max", {-FLOAT32_MAX}),
        ("LIMITS.min", {-FLOAT32_MAX}),
        ("np.finfo(np.float32).min", {-FLOAT32_MAX}),
        ("np.finfo(float).eps", {2.0**-52}),
        ("sys.float_info.epsilon", {2.0**-52}),
        ("torch.finfo(x.dtype).min", set()),
        ("torch.finfo(torch.float16).min", {-65504.0}),
        ("torch.finfo(torch.bfloat16).min", {-3.3895313892515355e38}),
        ('LOW["low"]', {-1e9}),
        ("2 * math.pi", {2 * math.pi}),
        ("x.mean()", set()),
        ("x + 1", {2.0}),
    ],
)
def test_numbers(script: Callable[..., TrainingScript], asked: str, numbers: set[float]) -> None:
    understood = script(SCRIPT.format(asked=asked))
    ((node, module),) = questions(understood)
    assert possible_numbers(understood.resolver, node, module) == numbers
