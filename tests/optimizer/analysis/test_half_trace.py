"""Following values back to the networks that computed them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.precision import half_trace
from torchopt_cli.optimizer.analysis.precision.half_values import half_uses
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize("last", ["y", "model(x)"])
def test_the_calls_of_a_project_are_not_followed_in_every_combination(
    script: Script, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Eight functions that each call the next one four times: 65536 ways from the first to the last."""
    functions = "\n".join(
        f"def f{i}(z):\n    return f{i + 1}(z) + f{i + 1}(z) * f{i + 1}(-z) - f{i + 1}(z + 1)"
        for i in range(8)
    )
    understood = script(f"""
import torch
model = torch.nn.Linear(2, 2)
y = torch.ones(2)
{functions}
def f8(z):
    return z
f0({last}).numpy()
""")
    producers = frozenset(
        call for call in understood.entry.calls if getattr(call.func, "id", None) == "model"
    )
    followed = 0
    argument_for = half_trace.argument_for

    def counted(*args: object) -> object:
        nonlocal followed
        followed += 1
        return argument_for(*args)

    monkeypatch.setattr(half_trace, "argument_for", counted)
    assert bool(half_uses(understood.resolver, producers)) is (last == "model(x)")
    assert followed < 1000


@pytest.mark.parametrize(
    ("kept", "is_half"),
    [
        ("losses = [loss.item() for loss in losses]", False),
        ("if y:\n    losses = [loss.item() for loss in losses]", True),
        ("print(losses)", True),
    ],
)
def test_a_new_list_of_an_old_name_has_nothing_of_the_old_one(
    script: Script, kept: str, is_half: bool
) -> None:
    understood = script(f"""
import numpy as np
import torch
model = torch.nn.Linear(2, 2)
losses = []
for y in range(3):
    losses.append(model(y))
{kept}
np.mean(losses)
""")
    producers = frozenset(
        call for call in understood.entry.calls if getattr(call.func, "id", None) == "model"
    )
    assert bool(half_uses(understood.resolver, producers)) is is_half
