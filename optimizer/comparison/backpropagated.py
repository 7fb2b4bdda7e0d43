"""Losses that only one version backpropagates, for the same gradients.

Gradients of inputs may be taken by ``backward`` in one version (a sampler that moves along them, an adversarial example) and by
``torch.autograd.grad``, which tells no loss, in the other; what they leave in the weights' is set to zero before the step. A large
output may be backpropagated in chunks, a batch in one piece or in several. What counts is what the optimizer steps by: where the
first such step has the same gradient of every parameter, its further losses are left out of both versions, and told. (Losses that both
versions have, at other steps of a round, are for :mod:`.backward_places`.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from ..execution.observations import Loss, Observations, Step
from .backward_places import same_gradients, same_sum
from .findings import Finding, Kind, note
from .tolerance import precision_of


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
        relative = precision_of(original, other).relative_error
        made = (pair for pair in apart.values() if not any(step.skipped for step in pair))
        ours, theirs = next(made, apart[min(apart)])
        same = same_gradients([ours], [theirs], relative)
        if not same or same_sum([ours], [theirs], relative):
            return cls()
        counts = {place: min(len(a.losses), len(b.losses)) for place, (a, b) in apart.items()}
        return cls(counts, _place(ours.losses, theirs.losses, relative))

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


def _is_unlike(ours: Step, theirs: Step) -> bool:
    """Whether a step has no losses, or is none that an optimizer makes of what was backpropagated before."""
    by_hand = any(step.closure or step.optimizer < 0 for step in (ours, theirs))
    return by_hand or ours.optimizer != theirs.optimizer or not ours.losses or not theirs.losses


def _place(ours: Sequence[Loss], theirs: Sequence[Loss], relative: float) -> Place:
    fewer, more = sorted((ours, theirs), key=len)
    for place, part in ((Place.LAST, more[-len(fewer) :]), (Place.FIRST, more[: len(fewer)])):
        if all(
            abs(a.value - b.value) <= relative * abs(a.value)
            for a, b in zip(fewer, part, strict=True)
        ):
            return place
    return Place.NONE
