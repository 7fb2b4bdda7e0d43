"""Where a GradScaler is made, unscales and is updated; and where none can serve."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.precision.loss_scaling import (
    LossScaling,
    NotScalable,
    loss_scaling,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

HEAD = """
import torch
from torch import nn

model, other = nn.Linear(2, 2), nn.Linear(2, 2)
first = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.SGD(other.parameters(), lr=0.1)


def clear(optimizers):
    for optimizer in optimizers:
        optimizer.zero_grad()

"""


def scaling(script: Script, body: str) -> LossScaling | NotScalable:
    understood = script(HEAD + dedent(body))
    return loss_scaling(understood.resolver, understood.step_code, understood.loops)


def updated_below(found: LossScaling | NotScalable) -> list[str]:
    assert isinstance(found, LossScaling), found.why
    return [update.code.split("\n")[0] for update in found.updates]


def test_once_for_all_optimizers(script: Script) -> None:
    found = scaling(
        script,
        """
        for x in data:
            model(x).sum().backward()
            first.step()
            other(x).sum().backward()
            second.step()
            done()
        """,
    )
    assert updated_below(found) == ["second.step()"]
    assert isinstance(found, LossScaling)
    assert found.companion.module.code(found.companion.statement).startswith("second =")


def test_below_the_branch_that_may_step_last(script: Script) -> None:
    found = scaling(
        script,
        """
        for i, x in enumerate(data):
            model(x).sum().backward()
            first.step()
            if i % 5 == 0:
                other(x).sum().backward()
                second.step()
        """,
    )
    assert updated_below(found) == ["if i % 5 == 0:"]


def test_where_either_branch_steps(script: Script) -> None:
    found = scaling(
        script,
        """
        for i, x in enumerate(data):
            model(x).sum().backward()
            if i % 2:
                first.step()
            else:
                second.step()
        """,
    )
    assert updated_below(found) == ["if i % 2:"]


def test_in_the_branch_when_only_it_steps(script: Script) -> None:
    found = scaling(
        script,
        """
        for i, x in enumerate(data):
            model(x).sum().backward()
            if i % 4 == 3:
                first.step()
                first.zero_grad()
        """,
    )
    assert updated_below(found) == ["first.step()"]


def test_unscaling_stands_above_the_first_look(script: Script) -> None:
    found = scaling(
        script,
        """
        for x in data:
            model(x).sum().backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            print(model.weight.grad)
            first.step()
            second.step()
        """,
    )
    assert isinstance(found, LossScaling)
    places = [(u.module.code(u.optimizer), u.code.split("\n")[0]) for u in found.unscalings]
    assert places == [("first", "if clip:"), ("second", "if clip:")]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("    model(x).sum().backward()\n    first.step(closure)\n", "closure"),
        ("    model(x).sum().backward()\n", "no optimizer step"),
        (
            "    model(x).sum().backward()\n    if a:\n        first.step()\n    if b:\n        second.step()\n",
            "in every pass",
        ),
        (
            "    model(x).sum().backward()\n    other(x).sum().backward()\n    for y in x:\n"
            "        other(y).sum().backward()\n        second.step()\n    first.step()\n",
            "before another update",
        ),
        (
            "    if a:\n        model(x).sum().backward()\n    first.step()\n",
            "without a backward pass",
        ),
        (
            "    model(x).sum().backward()\n    first.step()\n    first.step()\n",
            "more than once",
        ),
    ],
)
def test_not_scalable(script: Script, body: str, why: str) -> None:
    found = scaling(script, f"for x in data:\n{body}")
    assert isinstance(found, NotScalable), updated_below(found)
    assert why in found.why


def test_one_optimizer_in_two_branches(script: Script) -> None:
    found = scaling(
        script,
        """
        for x in data:
            model(x).sum().backward()
            if slow:
                first.step()
            else:
                first.step()
        """,
    )
    assert updated_below(found) == ["if slow:"]


FUSED = """
third = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
for x in data:
    model(x).sum().backward()
    {}
"""


@pytest.mark.parametrize(
    ("steps", "why"),
    [("third.step()", "fused SGD"), ("first.step(closure)\n    third.step()", "closure")],
)
def test_fused_momentum_is_the_last_reason(script: Script, steps: str, why: str) -> None:
    """The rewrite fuses optimizers whose gradients cannot be scaled."""
    found = scaling(script, FUSED.format(steps))
    assert isinstance(found, NotScalable)
    assert why in found.why
