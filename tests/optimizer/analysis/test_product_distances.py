"""Squared distances that are made of a matrix product, as people write them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.precision.product_distances import is_product_distance
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.fixture
def distances(script: Script) -> Callable[[str], list[str]]:
    """``distances(body)``: the code of those in a function of this body."""

    def ask(body: str) -> list[str]:
        head = "import torch\nimport torch.nn.functional as F\n\n\ndef compare(x, y, w, b):\n"
        understood = script(head + indent(dedent(body), "    "))
        module = understood.entry
        return [
            module.code(node)
            for node in module.nodes_of(ast.BinOp, ast.AugAssign, ast.Call)
            if is_product_distance(understood.resolver, node, module)
        ]

    return ask


@pytest.mark.parametrize(
    "code",
    [
        "x.pow(2).sum(1, keepdim=True) - 2 * x @ y + y.pow(2).sum(0, keepdim=True)",
        "(x ** 2).sum(-1)[:, None] + (y ** 2).sum(-1) - 2 * torch.mm(x, y.t())",
        "torch.sum(x ** 2, dim=1) + torch.sum(y ** 2, dim=1) - 2.0 * torch.matmul(x, y.T)",
        "-2 * torch.bmm(x, y) + x.square().sum(2, keepdim=True)",
        "(x * x).sum(1).unsqueeze(1).expand(3, 4) - 2 * F.linear(x, y)",
        "torch.norm(x, dim=1) ** 2 + x.norm(dim=1).pow(2) - 2 * torch.einsum('id,jd->ij', x, y)",
        "torch.addmm(x.pow(2).sum(1), x, y.t(), alpha=-2.0)",
    ],
)
def test_in_one_expression(distances: Callable[[str], list[str]], code: str) -> None:
    assert distances(f"return torch.exp({code})") == [code]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            """
            products = torch.mm(x, x.t())
            squares = torch.diag(products).unsqueeze(1).expand_as(products)
            return torch.exp(squares - 2 * products + squares.t())
            """,
            ["squares - 2 * products + squares.t()"],
        ),
        (
            """
            diagonal = torch.arange(x.size(1))
            xx = torch.bmm(x, x.transpose(2, 1))
            yy = torch.bmm(y, y.transpose(2, 1))
            products = torch.bmm(x, y.transpose(2, 1))
            rows = xx[:, diagonal, diagonal].unsqueeze(1).expand_as(products.transpose(2, 1))
            columns = yy[:, diagonal, diagonal].unsqueeze(1).expand_as(products)
            return (rows.transpose(2, 1) + columns - 2 * products).min(1)[0].sum()
            """,
            ["rows.transpose(2, 1) + columns - 2 * products"],
        ),
        (
            """
            distances = x.pow(2).sum(1, keepdim=True) + y.pow(2).sum(1)
            distances.addmm_(1, -2, x, y.t())
            return distances.clamp(min=1e-12).sqrt()
            """,
            ["distances.addmm_(1, -2, x, y.t())"],
        ),
        (
            """
            w.addmm_(x, y.t())
            """,
            [],
        ),
        (
            """
            scores = torch.mm(x, y.t())
            return (0.2 + scores - scores.diag().view(-1, 1)).clamp(min=0)
            """,
            [],
        ),
        (
            """
            inner = -2 * torch.matmul(x.transpose(2, 1), x)
            xx = torch.sum(x ** 2, dim=1, keepdim=True)
            return -xx - inner - xx.transpose(2, 1)
            """,
            ["-xx - inner - xx.transpose(2, 1)"],
        ),
        (
            """
            dist = -2 * torch.matmul(x, y.permute(0, 2, 1))
            dist += torch.sum(x ** 2, -1).view(3, 4, 1)
            dist += torch.sum(y ** 2, -1).view(3, 1, 4)
            return dist
            """,
            ["dist += torch.sum(x ** 2, -1).view(3, 4, 1)"],
        ),
        (
            """
            dist = torch.sum(x ** 2, -1).view(3, 4, 1)
            dist += torch.sum(y ** 2, -1).view(3, 1, 4)
            dist -= 2 * torch.matmul(x, y.permute(0, 2, 1))
            return dist
            """,
            [
                "dist += torch.sum(y ** 2, -1).view(3, 1, 4)",
                "dist -= 2 * torch.matmul(x, y.permute(0, 2, 1))",
            ],
        ),
        ("return -(x.pow(2).sum(1) - 2 * x @ y)", ["x.pow(2).sum(1) - 2 * x @ y"]),
        (
            """
            squares = x * x
            norms = squares.sum(1).view(-1, 1)
            return norms + norms.t() - 2 * x.mm(x.t())
            """,
            ["norms + norms.t() - 2 * x.mm(x.t())"],
        ),
    ],
)
def test_through_variables(
    distances: Callable[[str], list[str]], body: str, found: list[str]
) -> None:
    assert distances(body) == found


@pytest.mark.parametrize(
    "code",
    [
        "(x - y).pow(2).sum(1)",
        "torch.cdist(x, y) ** 2",
        "x @ w + b",
        "x.pow(2).sum(1) + y.pow(2).sum(1)",
        "F.mse_loss(x @ w, y) + 0.1 * w.pow(2).sum()",
        "(x @ w).mean() + w.pow(2).sum()",
        "x @ w + w.pow(3).sum()",
        "x @ w + w.sum()",
        "(x @ w) * w.pow(2)",
        "x.norm(dim=1) + x @ y",
        "y.pow(2) + x @ w",
        "(x ** 2).sum() if b else x @ w",
    ],
)
def test_other_sums(distances: Callable[[str], list[str]], code: str) -> None:
    assert distances(f"return {code}") == []


def test_another_variable_of_the_name(distances: Callable[[str], list[str]]) -> None:
    body = """
    d = x @ y
    def norms(x):
        d = 1
        d += x.pow(2).sum()
        return d
    return d + b
    """
    assert distances(body) == []
