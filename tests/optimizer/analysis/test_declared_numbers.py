"""What is a number, or declared to be one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.values.declared_numbers import is_declared_number

from .conftest import questions

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ASK(1 - 0.5 * 2)", True),
        ("m = 0.9\nASK(-m)", True),
        ("m = 0.9\nm = load()\nASK(m)", False),
        ("def f(m=0.9):\n    ASK(m)\nf(**options)", True),
        ("def f(m: float):\n    ASK(m)\nf(load())", True),
        ("def f(m: Schedule = 0.9):\n    ASK(m)\nf(**options)", False),
        ("def f(m=None):\n    ASK(m)\nf(**options)", False),
        ("def f(m):\n    ASK(m)\nf(0.9)\nf(m=1)", True),
        ("def f(m):\n    ASK(m)\nf(0.9)\nf(load())", False),
        ("def f(m):\n    ASK(m)", False),
        ("def f(*m):\n    ASK(m)\nf(1)", False),
        ("step = 3\nASK(min(1 - 1 / (step + 1), 0.99))", True),
        ("import math\nASK(math.cos(load()))", True),
        ("import torch\nASK(min(torch.rand(3)))", False),
        (
            "class A:\n    def __init__(self, m=0.9):\n        self.m = m\n    def f(self):\n        ASK(self.m)",
            True,
        ),
        (
            "class A:\n    def __init__(self, m=0.9):\n        self.m = m\n    def f(self):\n        self.m = g()\n        ASK(self.m)",
            False,
        ),
        (
            "import tyro\nfrom dataclasses import dataclass\n@dataclass\nclass Args:\n    tau: float = 0.1\n"
            "args = tyro.cli(Args)\nASK(args.tau)",
            True,
        ),
        (
            "import tyro\nfrom dataclasses import dataclass\n@dataclass\nclass Args:\n    tau: str = '0.1'\n"
            "args = tyro.cli(Args)\nASK(args.tau)",
            False,
        ),
    ],
)
def test_declared_numbers(script: Script, code: str, expected: bool) -> None:
    asked = script(code)
    (question,) = questions(asked)
    assert is_declared_number(asked.resolver, *question) is expected
