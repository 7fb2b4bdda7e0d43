"""How many numbers a row has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.tensors.row_sizes import row_numbers

from .conftest import questions

Script = Callable[..., TrainingScript]
HEAD = "import argparse\nimport numpy as np\nimport torch\n"


@pytest.mark.parametrize(
    ("code", "numbers"),
    [
        ("ASK(torch.randn(100, 3, 32, 32))", 3072),
        ("ASK(torch.zeros((100, 3, 8)))", 24),
        ("ASK(torch.ones(size=[100, 3, 8]))", 24),
        ("n, side = 10, 7\nx = torch.rand(n, side, side)\nASK(x)", 49),
        ("ASK(torch.randint(0, 255, (100, 5, 5)).float() / 255)", 25),
        ("ASK(torch.randint(9, size=(100, 5)))", 5),
        ("ASK(torch.full((100, 6), 1.0).clone())", 6),
        ("ASK(torch.normal(0.0, 1.0, (100, 6)))", 6),
        ("ASK(torch.from_numpy(np.random.rand(100, 4, 4)).float())", 16),
        ("ASK(torch.tensor(np.random.normal(size=(100, 4)).astype('float32')))", 4),
        ("ASK(torch.FloatTensor(np.zeros((100, 4))))", 4),
        ("x = torch.randn(100, 3, 8)\nASK(x[:80].float())", 24),
        ("x = np.random.rand(100, 4)\nASK(torch.tensor(x[10:]))", 4),
        ("x = np.random.rand(100, 4)\nASK(torch.tensor(x[:, 2:]))", 0),
        ("x = torch.randn(9, 2) if torch.rand(1) > 0.5 else torch.randn(9, 7)\nASK(x)", 7),
        (
            "parser = argparse.ArgumentParser()\nparser.add_argument('--side', type=int, default=5)\n"
            "args = parser.parse_args()\nASK(torch.randn(9, args.side, args.side))",
            25,
        ),
        ("ASK(torch.randn(100))", 0),
        ("ASK(torch.randn(100, len(names)))", 0),
        ("ASK(torch.randn(100, 4).view(50, 8))", 0),
        ("ASK(torch.load('x.pt'))", 0),
        ("ASK(torch.tensor([[1, 2], [3, 4]]))", 0),
        ("ASK(load())", 0),
    ],
)
def test_numbers_of_a_row(script: Script, code: str, numbers: int) -> None:
    understood = script(HEAD + code)
    ((tensor, module),) = questions(understood)
    assert row_numbers(understood.resolver, tensor, module) == numbers
