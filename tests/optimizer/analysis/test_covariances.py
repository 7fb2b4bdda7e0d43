"""Differences of covariances, as people write them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.precision.covariances import is_covariance_difference
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.fixture
def differences(script: Script) -> Callable[[str], list[str]]:
    """``differences(body)``: the code of those in a function of this body."""

    def ask(body: str) -> list[str]:
        head = "import torch\n\n\ndef coral(x, y, n, ones):\n"
        understood = script(head + indent(dedent(body), "    "))
        module = understood.entry
        return [
            module.code(node)
            for node in module.nodes_of(ast.BinOp, ast.Call)
            if is_covariance_difference(understood.resolver, node, module)
        ]

    return ask


@pytest.mark.parametrize(
    "code",
    [
        "x.t() @ x - (y.t() @ y) / n",
        "torch.mm(x.t(), x) - torch.mm(y.t(), y)",
        "x.bmm(x.transpose(1, 2)) / n - torch.bmm(y, torch.transpose(y, 1, 2)) / n",
        "torch.add(torch.mm(x.t(), x), -1 * torch.mm(y.t(), y))",
        "torch.sub(x.T @ x, y.T @ y)",
        "(x @ x.mT).sub(y @ y.mT)",
    ],
)
def test_in_one_expression(differences: Callable[[str], list[str]], code: str) -> None:
    assert differences(f"return torch.norm({code})") == [code]


def test_through_variables(differences: Callable[[str], list[str]]) -> None:
    body = """
        mean = ones @ x
        covariance = (x.t() @ x - (mean.t() @ mean) / n) / (n - 1)
        centred = y - y.mean(0)
        turned = centred.t()
        other = turned @ centred / (n - 1)
        return (covariance - other).pow(2).sum()
        """
    assert differences(body) == ["x.t() @ x - (mean.t() @ mean) / n", "covariance - other"]


@pytest.mark.parametrize(
    "code",
    [
        "x @ y.t() - y @ x.t()",
        "x.t() @ x + y.t() @ y",
        "torch.add(x.t() @ x, y.t() @ y)",
        "x @ x.t() - (x @ x.t()).max(1)[0]",
        "x @ x.t() - torch.eye(3)",
        "x - y",
    ],
)
def test_none(differences: Callable[[str], list[str]], code: str) -> None:
    assert differences(f"return {code}") == []
