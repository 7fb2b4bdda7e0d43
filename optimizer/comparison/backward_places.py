"""Losses that are backpropagated at other steps of the same round: two optimizers that share no gradient.

What a step makes of a loss shows in its gradients and updates, which are compared step by step whatever was backpropagated
when. So where the original computes a loss, has one optimizer step, and computes the next for another optimizer, a rewrite may
compute both and have both step: the same losses in the same order, and the same gradients. Those of the rewrite are then told
where the original has them. Where it backpropagates them in one call, their sum is all that is known of them, and the losses of a round
are told together in both versions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..execution.observations import Observations, Step
from .findings import Finding, Kind, note, step_number
from .tolerance import precision_of


@dataclass(frozen=True)
class Gathering:
    """Whether losses are told at the first step of their round, all of them, in both versions."""

    gathered: bool

    @classmethod
    def of(cls, original: Observations, other: Observations) -> Gathering:
        """Yes where these are as many only if they are added up, or steps are others, and nothing else of the first such round is.

        What counts there is the sum of the losses, and the gradient that each parameter's step has: it does not matter
        which optimizer makes that.
        """
        if other.ranks:
            return cls(False)
        ours, theirs = _by_round(original), _by_round(other)
        apart = [n for n in ours.keys() & theirs.keys() if _added_up(ours[n], theirs[n])]
        relative = precision_of(original, other).relative_error
        first = min(apart, default=None)
        return cls(first is not None and _same_round(ours[first], theirs[first], relative))

    def told(self, run: Observations) -> Observations:
        """``run``, of either version."""
        if not self.gathered:
            return run
        steps: list[Step] = []
        for made in _by_round(run).values():
            every = tuple(loss for step in made for loss in step.losses)
            steps.append(replace(made[0], losses=every))
            steps += [replace(step, losses=()) for step in made[1:]]
        return replace(run, steps=tuple(steps))

    def notes(self) -> list[Finding]:
        """What was told otherwise."""
        message = "losses are backpropagated at other steps of a round; they add up to the same, with the same gradients"
        return [note(Kind.BACKWARD_CALLS, message)] if self.gathered else []


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


def _added_up(ours: Sequence[Step], theirs: Sequence[Step]) -> bool:
    """Whether steps of a round have losses that only a sum over the round has in common."""
    before, after = ([len(step.losses) for step in made] for made in (ours, theirs))
    between = any((*before[1:], *after[1:]))
    by_closure = any(step.closure for step in (*ours, *theirs))
    return between and before != after and not by_closure and not _elsewhere(ours, theirs)


def _same_round(ours: Sequence[Step], theirs: Sequence[Step], relative: float) -> bool:
    return same_sum(ours, theirs, relative) and same_gradients(ours, theirs, relative)


def same_sum(ours: Sequence[Step], theirs: Sequence[Step], relative: float) -> bool:
    """Whether the losses of these steps add up to the same but for the rounding of one layer."""
    before, after = (
        [loss.value for step in made for loss in step.losses] for made in (ours, theirs)
    )
    return abs(math.fsum(after) - math.fsum(before)) <= relative * math.fsum(map(abs, before))


def same_gradients(ours: Sequence[Step], theirs: Sequence[Step], relative: float) -> bool:
    """Whether each parameter's gradient is the same in these steps, whichever has it, but for the rounding of one layer."""
    known = [_gradients(made) for made in (ours, theirs)]
    none = 0.0, 0.0
    for name in known[0].keys() | known[1].keys():
        (before, size), (after, _) = (run.get(name, none) for run in known)
        if not abs(after - before) <= relative * size:
            return False
    return True


def _gradients(made: Sequence[Step]) -> Mapping[str, tuple[float, float]]:
    """The norm of each parameter's gradient, and that of all gradients of its step, whose rounding it may have."""
    return {
        name: (update.grad_norm or 0.0, step.grad_norm)
        for step in made
        for name, update in step.parameters.items()
    }


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
