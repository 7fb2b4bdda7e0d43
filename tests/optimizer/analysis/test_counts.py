"""Whole numbers of samples."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.distributed.counts import is_count
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


def asked(script: Script, code: str) -> bool:
    """What is said of the argument of ``ASK(..)``."""
    module = script(f"import torch\n{dedent(code)}").entry
    (call,) = (call for call in module.calls if getattr(call.func, "id", None) == "ASK")
    return is_count(call.args[0], module)


@pytest.mark.parametrize(
    "code",
    [
        "ASK(predictions.eq(labels))",
        "ASK((predictions == labels).sum())",
        "ASK(torch.sum(predictions == labels.data))",
        "correct = predictions.eq(labels).view(-1).float().sum(0)\nASK(correct)",
        "total = 0\nfor x in xs:\n    total += (x > 0).sum().item()\nASK(total)",
        "correct = 0.0\nfor x in xs:\n    correct += torch.sum(x == y.data)\nASK(correct)",
        "hits = torch.eq(a, b)\nASK(hits.sum() + (c > d).sum())",
    ],
)
def test_counts(script: Script, code: str) -> None:
    assert asked(script, code)


@pytest.mark.parametrize(
    "code",
    [
        "ASK(loss)",
        "ASK(loss.sum(0))",
        "ASK(loss.to(0))",
        "ASK(torch.sum(loss, 0))",
        "ASK((predictions == labels).mean())",
        "total = 0\nfor x in xs:\n    total += x\nASK(total)",
        "total = 0\nfor x in xs:\n    total /= 2\nASK(total)",
        "def f(total):\n    ASK(total)",
        "a = b\nb = a\nASK(a)",
        "ASK((a > b).sum() * loss)",
    ],
)
def test_other_numbers(script: Script, code: str) -> None:
    assert not asked(script, code)
