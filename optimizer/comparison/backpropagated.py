"""Losses that only one version backpropagates, for the same gradients.

Gradients of inputs may be taken by ``backward`` in one version (a sampler that moves along them, an adversarial example) and by
``torch.autograd.grad``, which tells no loss, in the other; what they leave in the weights' is set to zero before the step. A large
output may be backpropagated in chunks, a batch in one piece or in several. What counts is what the optimizer steps by: where the
first such step has the same gradient of every parameter, its further losses are left out of both versions, and told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from ..execution.observations import Loss, Observations, Step
from .findings import Finding, Kind, note
from .tolerance import Precision, precision_of


class Place(Enum):
    """Which losses of a step that has more of them the other version has, too."""

    FIRST = "first"
    LAST = "last"
    NONE = "none"


@dataclass(frozen=True)
class FurtherLosses:
    """``counts``: by the step's place in the run how many losses both versions have, which are at ``place`` among those of the one that has more."""

    counts: Mapping[int, int] = field(default_factory=dict[int, int])
    place: Place = Place.NONE

    def __bool__(self) -> bool:
        return bool(self.counts)

    @classmethod
    def of(cls, original: Observations, other: Observations) -> FurtherLosses:
        """The steps that follow on another number of losses; none where the first of them has other gradients, or losses that add up to the same.

        Nor where a closure takes them, or the script updates its parameters by hand, where each loss is a step.
        """
        pairs = list(zip(original.steps, other.steps, strict=False))
        apart = {
            place: (ours, theirs)
            for place, (ours, theirs) in enumerate(pairs)
            if len(ours.losses) != len(theirs.losses)
        }
        if not apart or any(_is_unlike(*pair) for pair in apart.values()):
            return cls()
        precision = precision_of(original, other)
        ours, theirs = apart[min(apart)]
        if add_up_alike(ours, theirs, precision) or not _same_gradients(ours, theirs, precision):
            return cls()
        counts = {place: min(len(a.losses), len(b.losses)) for place, (a, b) in apart.items()}
        return cls(counts, _place(ours.losses, theirs.losses, precision))

    def without(self, run: Observations) -> Observations:
        """``run`` without the losses that only one version has."""
        if not self:
            return run
        steps = [
            replace(step, losses=self._kept(step.losses, self.counts[place]))
            if place in self.counts
            else step
            for place, step in enumerate(run.steps)
        ]
        return replace(run, steps=tuple(steps))

    def _kept(self, losses: tuple[Loss, ...], count: int) -> tuple[Loss, ...]:
        if self.place is Place.NONE:
            return ()
        return losses[:count] if self.place is Place.FIRST else losses[-count:]

    def notes(self) -> list[Finding]:
        """What is told of them."""
        if not self:
            return []
        message = "another number of losses is backpropagated before a step by the same gradients"
        return [note(Kind.BACKWARD_CALLS, message)]


def add_up_alike(ours: Step, theirs: Step, precision: Precision) -> bool:
    """Whether the losses of a step add up to the same but for the rounding of one layer."""
    before, after = (math.fsum(loss.value for loss in step.losses) for step in (ours, theirs))
    scale = math.fsum(abs(loss.value) for loss in ours.losses)
    return abs(after - before) <= precision.relative_error * scale


def _is_unlike(ours: Step, theirs: Step) -> bool:
    """Whether a step has no losses, or is none that an optimizer makes of what was backpropagated before."""
    by_hand = any(step.closure or step.optimizer < 0 for step in (ours, theirs))
    return by_hand or ours.optimizer != theirs.optimizer or not ours.losses or not theirs.losses


def _same_gradients(ours: Step, theirs: Step, precision: Precision) -> bool:
    """Whether every parameter has a gradient as long as in the other version, but for the rounding of one layer."""
    if ours.parameters.keys() != theirs.parameters.keys() or ours.skipped or theirs.skipped:
        return False
    allowed = precision.relative_error * ours.grad_norm
    return math.isfinite(allowed) and all(
        (before.grad_norm is None) == (after.grad_norm is None)
        and abs((before.grad_norm or 0.0) - (after.grad_norm or 0.0)) <= allowed
        for name, before in ours.parameters.items()
        for after in [theirs.parameters[name]]
    )


def _place(ours: Sequence[Loss], theirs: Sequence[Loss], precision: Precision) -> Place:
    fewer, more = sorted((ours, theirs), key=len)
    for place, part in ((Place.LAST, more[-len(fewer) :]), (Place.FIRST, more[: len(fewer)])):
        if all(
            abs(a.value - b.value) <= precision.relative_error * abs(a.value)
            for a, b in zip(fewer, part, strict=True)
        ):
            return place
    return Place.NONE
