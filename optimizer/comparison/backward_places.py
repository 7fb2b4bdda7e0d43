"""Losses that the rewrite backpropagates before another step of the same round: two optimizers that share no gradient.

What a step makes of a loss shows in its gradients and updates, which are compared step by step whatever was backpropagated
when. So where the original computes a loss, has one optimizer step, and computes the next for another optimizer, a rewrite may
compute both and have both step: the same losses in the same order, and the same gradients. Those of the rewrite are then told
where the original has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..execution.observations import Observations, Step
from .findings import Finding, Kind, note, step_number
from .tolerance import precision_of


def losses_in_place(original: Observations, other: Observations) -> Observations:
    """``other`` with its losses told at the steps that the original makes with them.

    As it is where the same optimizers do not step in the same order, or other losses or gradients come of it in the first round
    that has them elsewhere.
    """
    if other.ranks:
        return other
    ours, theirs = _by_round(original), _by_round(other)
    moved = {
        number: _moved(ours[number], made)
        for number, made in theirs.items()
        if number in ours and _elsewhere(ours[number], made)
    }
    if not moved:
        return other
    first = min(moved)
    relative = precision_of(original, other).relative_error
    if not all(_alike(a, b, relative) for a, b in zip(ours[first], moved[first], strict=True)):
        return other
    steps = [step for number, made in theirs.items() for step in moved.get(number, made)]
    return replace(other, steps=tuple(steps))


def moved_note(before: Observations, after: Observations) -> list[Finding]:
    """What is told of a rewrite whose losses were told elsewhere."""
    for ours, theirs in zip(before.steps, after.steps, strict=True):
        if len(ours.losses) != len(theirs.losses):
            message = (
                "losses are backpropagated before another optimizer steps, with the same gradients"
            )
            return [note(Kind.BACKWARD_CALLS, message, step=step_number(theirs))]
    return []


def _by_round(run: Observations) -> Mapping[int, Sequence[Step]]:
    rounds: dict[int, list[Step]] = defaultdict(list)
    for step in run.steps:
        rounds[step.round].append(step)
    return rounds


def _elsewhere(ours: Sequence[Step], theirs: Sequence[Step]) -> bool:
    """Whether the same optimizers step in a round, after as many losses, that are backpropagated at other places."""
    before, after = ([len(step.losses) for step in made] for made in (ours, theirs))
    same_steps = [s.optimizer for s in ours] == [s.optimizer for s in theirs]
    by_closure = any(step.closure for step in (*ours, *theirs))
    return same_steps and not by_closure and before != after and sum(before) == sum(after)


def _moved(ours: Sequence[Step], theirs: Sequence[Step]) -> list[Step]:
    losses = iter([loss for step in theirs for loss in step.losses])
    return [
        replace(step, losses=tuple(next(losses) for _ in place.losses))
        for place, step in zip(ours, theirs, strict=True)
    ]


def _alike(ours: Step, theirs: Step, relative: float) -> bool:
    """Whether losses and gradients of a step are the same but for the rounding of one layer."""
    pairs: Iterator[tuple[float, float]] = (
        (a.value, b.value) for a, b in zip(ours.losses, theirs.losses, strict=True)
    )
    return all(
        abs(a - b) <= relative * abs(a) for a, b in (*pairs, (ours.grad_norm, theirs.grad_norm))
    )
