"""Dropout of tensors that only padding has made larger or smaller: its masks are drawn for other sizes, which is no change of training.

A batch of sentences that is padded to a multiple of eight, or no further than its longest, drops other elements although it computes the
same. Then the two versions can only be compared without dropout. What a rewrite drops from another place, or with another
probability, such a comparison would not show; so they have to call it as often, with the same probabilities, on tensors whose sizes differ
where those of what the model is given do, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..execution.observations import Observations


def resized(original: Observations, other: Observations) -> dict[int, int]:
    """The sizes of the original that are others in ``other``, where dropout differs by these alone; else empty."""
    ours, theirs = original.first_dropouts, other.first_dropouts
    if len(ours) != len(theirs) or _counts(original) != _counts(other):
        return {}
    if any(p != q or len(a) != len(b) for (p, a), (q, b) in zip(ours, theirs, strict=True)):
        return {}
    sizes: dict[int, int] = {}
    given = dict(_first_sizes(original, other))
    for (_, before), (_, now) in zip(ours, theirs, strict=True):
        for a, b in zip(before, now, strict=True):
            if sizes.setdefault(a, b) != b or (a != b and given.get(a) != b):
                return {}
    return {a: b for a, b in sizes.items() if a != b}


def _counts(run: Observations) -> dict[float, int]:
    """How often each probability was dropped with, by whatever function."""
    counts: dict[float, int] = {}
    for _, p, count in run.dropouts:
        counts[p] = counts.get(p, 0) + count
    return counts


def _first_sizes(original: Observations, other: Observations) -> Iterator[tuple[int, int]]:
    """The sizes of what the first layer gives, by which the sizes of its model's input are known."""
    for ours, theirs in zip(original.layer_outputs[:1], other.layer_outputs[:1], strict=False):
        if ours.layer == theirs.layer:
            yield from zip(ours.output.shape, theirs.output.shape, strict=False)
