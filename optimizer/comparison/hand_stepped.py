"""An original that updates its parameters by hand (``p -= lr * p.grad``), and a rewrite in which an optimizer of torch's does.

Learning rate and settings are the script's own then and tell nothing. What the optimizer makes of each gradient is compared
with what the script makes of it, from the first step on: movement, every bit or within rounding.
"""

from __future__ import annotations

from dataclasses import replace

from ..execution.observations import Observations, Step
from .findings import Finding, Kind, note

_BY_HAND = -1
"""The number of the optimizer where there is none."""


def stepped_by_hand(run: Observations) -> bool:
    """Whether the script has no optimizer, and takes all of its steps by hand."""
    by_hand = bool(run.steps) and all(step.optimizer == _BY_HAND for step in run.steps)
    return by_hand and not run.optimizers


def told_by_hand(original: Observations, other: Observations) -> Observations:
    """``other`` with the steps of its optimizer told as the script's own; as it is unless the original takes all of its steps by hand,
    of the same parameters, and the rewrite none, by one optimizer.
    """
    if other.ranks or not stepped_by_hand(original) or len(other.optimizers) != 1:
        return other
    names = {name for group in other.optimizers[0].groups for name in group}
    trained = {name for step in original.steps for name in step.parameters}
    if names != trained or any(step.closure or step.optimizer != 0 for step in other.steps):
        return other
    return replace(
        other,
        optimizers=(),
        optimizer_state_file=None,
        steps=tuple(map(_by_hand, other.steps)),
    )


def by_hand_note(before: Observations, after: Observations) -> list[Finding]:
    """What is told of a rewrite whose steps were told so."""
    if before is after:
        return []
    name = before.optimizers[0].class_name
    message = f"{name} steps, where the original updates the parameters by hand"
    return [note(Kind.OPTIMIZER_STEPS, message)]


def _by_hand(step: Step) -> Step:
    return replace(step, optimizer=_BY_HAND, learning_rates=())
