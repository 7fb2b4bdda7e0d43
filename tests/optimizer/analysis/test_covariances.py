"""Differences of covariances and Gram matrices, as people write them."""

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
            for node in module.nodes_of(ast.BinOp, ast.AugAssign, ast.Call)
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
        "x @ x.t() - torch.eye(3)",
        "torch.eye(3, device=x.device).expand_as(y) - x @ x.t()",
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


def test_from_the_identity_through_variables(differences: Callable[[str], list[str]]) -> None:
    body = """
        identity = torch.eye(x.size(1))[None, :, :]
        if x.is_cuda:
            identity = identity.cuda()
        loss = torch.mean(torch.norm(torch.bmm(x, x.transpose(2, 1)) - identity, dim=(1, 2)))
        flat = y.view(y.shape[0], -1)
        squares = torch.mm(flat, torch.t(flat))
        squares -= torch.eye(flat.shape[0])
        return loss + squares.abs().sum()
        """
    assert set(differences(body)) == {
        "torch.bmm(x, x.transpose(2, 1)) - identity",
        "squares -= torch.eye(flat.shape[0])",
    }


@pytest.mark.parametrize(
    "code",
    [
        "x @ y.t() - y @ x.t()",
        "x.t() @ x + y.t() @ y",
        "torch.add(x.t() @ x, y.t() @ y)",
        "x @ x.t() - (x @ x.t()).max(1)[0]",
        "x @ x.t() - 1e9 * torch.eye(3)",
        "(1 - torch.eye(3)) * (x @ x.t())",
        "x - torch.eye(3)",
        "torch.eye(3) - torch.eye(3)",
        "x - y",
    ],
)
def test_none(differences: Callable[[str], list[str]], code: str) -> None:
    assert differences(f"return {code}") == []


_GRAM = """
    def gram(features):
        b, c, h, w = features.size()
        flat = features.view(b, c, h * w)
        return flat.bmm(flat.transpose(1, 2)) / (c * h * w)

"""


@pytest.mark.parametrize(
    "loss",
    [
        "torch.nn.functional.mse_loss(gram(x), gram(y).detach())",
        "torch.nn.L1Loss()(gram(x), gram(y))",
        "gram(x) - gram(y)",
    ],
)
def test_through_functions(differences: Callable[[str], list[str]], loss: str) -> None:
    assert differences(_GRAM + f"    return {loss}\n") == [loss]


def test_through_lists(differences: Callable[[str], list[str]]) -> None:
    body = (
        _GRAM
        + """
    loss = torch.nn.MSELoss()
    targets = [gram(one) for one in y]
    for features, target in zip(x, targets):
        n = loss(gram(features), target[: len(x), :, :])
    for i, target in enumerate(targets):
        n = loss(gram(x[i]), target)
    return loss(gram(x[0]), targets[0])
"""
    )
    assert set(differences(body)) == {
        "loss(gram(features), target[: len(x), :, :])",
        "loss(gram(x[i]), target)",
        "loss(gram(x[0]), targets[0])",
    }


@pytest.mark.parametrize(
    "code",
    [
        "torch.nn.functional.mse_loss(x @ x.t(), y)",
        "torch.nn.functional.mse_loss(x, y)",
        "torch.nn.functional.binary_cross_entropy_with_logits(x @ x.t(), y @ y.t())",
    ],
)
def test_no_loss_of_them(differences: Callable[[str], list[str]], code: str) -> None:
    assert differences(f"return {code}") == []


def test_kept_as_an_attribute(script: Script) -> None:
    understood = script(
        """
        import torch
        import torch.nn.functional as F
        from torch import nn


        class StyleLoss(nn.Module):
            def __init__(self, features):
                super().__init__()
                self.target = gram(features).detach()

            def forward(self, features):
                self.loss = F.mse_loss(gram(features), self.target)
                return features


        def gram(features):
            flat = features.flatten(1)
            product = torch.mm(flat, flat.t())
            return product.div(features.numel())
        """
    )
    module = understood.entry
    found = [n for n in module.calls if is_covariance_difference(understood.resolver, n, module)]
    assert [module.code(n) for n in found] == ["F.mse_loss(gram(features), self.target)"]
