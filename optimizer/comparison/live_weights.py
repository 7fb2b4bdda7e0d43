"""Saved tensors that are the network's, parameters or buffers of the moment, in one version only, or of another moment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..execution.observations import Checkpoint, CheckpointEntry, Observations
from .deviation import deviations
from .findings import Finding, Kind
from .tolerance import Precision

_SHOWN = 3
_ROUNDED_NORMS = 1 + 1e-5
"""Norms of updates are float32's: sums of 2^20 squares, by the bound of Higham and Mary (see :mod:`.tolerance`) rounded by 1.4e-5 at most, in a square root half."""


def neighbours_needed(neighbours: Sequence[Observations]) -> int:
    """How many have to make a save for it to be known what rounding does there: two, as for steps (see :mod:`.reached`)."""
    return min(2, len(neighbours))


@dataclass(frozen=True)
class OtherWeights:
    """Looks for them in what the runs ``original`` and ``other`` save; ``needed`` neighbours tell what rounding does to a save."""

    original: Observations
    other: Observations
    precision: Precision
    needed: int = 0

    def found(
        self, ours: Checkpoint, theirs: Checkpoint, near: Sequence[Checkpoint]
    ) -> list[Finding]:
        """Those of one file; ``near`` are the neighbours' saves of it. Counts come last: two may be the same by chance."""
        found = (
            *self._of_another_moment(ours, theirs, near),
            *self._no_longer_live(ours, theirs, near),
            *self._now_live(ours, theirs, near),
        )
        return sorted(found, key=lambda finding: ours.entries[finding.tensor or ""].shape == ())

    def _of_another_moment(
        self, ours: Checkpoint, theirs: Checkpoint, near: Sequence[Checkpoint]
    ) -> Iterator[Finding]:
        """One parameter or buffer of the moment in both, if that is another one, and always the same in the original and its neighbours."""
        moves = len(near) < self.needed or any(save.rounds != ours.rounds for save in near)
        if moves or ours.rounds == theirs.rounds:
            return
        moved = [
            key
            for key, entry in ours.entries.items()
            if (other := theirs.entries.get(key)) is not None
            and other.sha256 != entry.sha256
            and set(entry.same_as) & set(other.same_as)
        ]
        for key in moved[:1]:
            yield Finding(
                Kind.CHECKPOINT_VALUE,
                f"{ours.path}: {key} is saved {_moment(theirs)}, in the original {_moment(ours)}",
                step=min(ours.rounds, theirs.rounds) + 1,
                tensor=key,
                original=ours.rounds,
                rewritten=theirs.rounds,
            )

    def _no_longer_live(
        self, ours: Checkpoint, theirs: Checkpoint, near: Sequence[Checkpoint]
    ) -> Iterator[Finding]:
        """Tensors that are a parameter or buffer of the moment in the original and its neighbours, and no longer are."""
        for key, entry in ours.entries.items():
            other = theirs.entries.get(key)
            same = set(entry.same_as)
            for save in near:
                same &= set(save.entries[key].same_as if key in save.entries else ())
            if (
                not same
                or other is None
                or (other.shape, other.dtype) != (entry.shape, entry.dtype)
                or other.sha256 == entry.sha256  # a count, which others happen to have reached
                or same & set(other.same_as)
                or self._is_unmoved(self.original, entry, self.other, other)
            ):
                continue
            name = min(same)
            yield Finding(
                Kind.CHECKPOINT_VALUE,
                f"{ours.path}: {key} is not {name} as the last step left it, and in the original it is",
                step=ours.rounds or None,
                tensor=key,
                original=name,
                rewritten=", ".join(other.same_as[:_SHOWN]) or None,
            )

    def _now_live(
        self, ours: Checkpoint, theirs: Checkpoint, near: Sequence[Checkpoint]
    ) -> Iterator[Finding]:
        """Tensors of their own in the original and its neighbours that have become a parameter or buffer of the moment."""
        for key, entry in ours.entries.items():
            other = theirs.entries.get(key)
            own = entry.stored_as and not any(
                save.entries[key].same_as for save in near if key in save.entries
            )
            if (
                not own
                or other is None
                or not other.same_as
                or entry.shape != other.shape
                or other.sha256 == entry.sha256
                or self._is_unmoved(self.other, other, self.original, entry)
            ):
                continue
            name = other.same_as[0]
            yield Finding(
                Kind.CHECKPOINT_VALUE,
                f"{ours.path}: {key} is {name} as the last step left it, and in the original it is not",
                step=ours.rounds or None,
                tensor=key,
                rewritten=name,
            )

    def _is_unmoved(
        self, run: Observations, live: CheckpointEntry, second: Observations, kept: CheckpointEntry
    ) -> bool:
        """Whether ``live`` is a parameter of ``run`` that steps move by no more than rounding, and what the ``second`` run has ``kept`` its rounding.

        An average of what does not move is that, but for how it is summed up. So it is of the bias of a convolution
        before BatchNorm, whose gradient is nothing but rounding.
        """
        start = run.snapshot(0)
        if start is None or kept.stored_as is None:
            return False
        weights, saved = run.tensors(start) or {}, second.saved_tensors()
        for name in [name for name in live.same_as if name in weights][:1]:
            far = 0.0 if start.hashes.get(name) == live.sha256 else _moved(run, name)
            value, average = {name: weights[name]}, {name: saved[kept.stored_as]}
            (found,) = deviations(value, average).values()
            return found.distance + far <= self.precision.relative_error * found.norm
        return False


def _moment(save: Checkpoint) -> str:
    """When a file was written, in words."""
    return f"after round {save.rounds}" if save.rounds else "before the first round"


def _moved(run: Observations, name: str) -> float:
    """The longest way that the steps of ``run`` can have taken a parameter from its start; infinite where it has gone further by other means."""
    norms = [step.parameters[name].update_norm for step in run.steps if name in step.parameters]
    start, end = run.snapshots[0], run.snapshots[-1]
    first, last = run.tensors(start) or {}, run.tensors(end) or {}
    far = math.fsum(norms)
    if name not in first or name not in last:
        return math.inf
    (found,) = deviations({name: first[name]}, {name: last[name]}).values()
    return far if found.distance <= far * _ROUNDED_NORMS else math.inf
