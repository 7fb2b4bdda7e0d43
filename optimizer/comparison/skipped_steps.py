"""Steps that a GradScaler skips: the weights of such a run are some steps behind those of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..execution.observations import Observations
from .findings import Finding, Kind, Severity, step_number

NEVER_STEPPED = "a GradScaler skipped every step of the rewrite: more steps are needed (--steps)"

_OF_THE_WEIGHTS = frozenset(
    {
        Kind.EVALUATION_OUTPUT,
        Kind.BUFFER,
        Kind.STDOUT,
        Kind.FILES,
        Kind.FILE_VALUE,
        Kind.CHECKPOINT_VALUE,
    }
)
"""What depends on how many steps the weights have made, besides themselves."""


def never_stepped(run: Observations) -> bool:
    return bool(run.steps) and all(step.skipped for step in run.steps)


def unseen_overflow(original: Observations, other: Observations) -> str | None:
    """That one version's GradScaler scales losses, and is not asked for the step; None where both do alike."""
    for ours, theirs in zip(original.steps, other.steps, strict=False):
        if ours.unguarded != theirs.unguarded:
            version = "rewrite" if theirs.unguarded else "original"
            return (
                f"from step {step_number(theirs)} on only the {version} calls optimizer.step() where the losses are scaled, not "
                "scaler.step(), which would skip a step with gradients that are Inf or NaN: here none are, so nothing shows what that does"
            )
    return None


def some_steps_behind(
    findings: Sequence[Finding], original: Observations, rewritten: Observations
) -> list[Finding]:
    """``findings``, as notes those about what weights give that are some steps behind for the scaler's sake alone.

    For a rewrite that was shown to do the original's arithmetic where no step is skipped.
    """
    made = {step_number(step) for step in original.steps if not step.skipped}
    lost = (step_number(step) for step in rewritten.steps if step.skipped)
    first = next((step for step in lost if step in made), math.inf)
    return [
        replace(f, severity=Severity.NOTE)
        if f.fails and f.kind in _OF_THE_WEIGHTS and (f.step or math.inf) > first
        else f
        for f in findings
    ]
