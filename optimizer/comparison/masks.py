"""Dropout of tensors that only padding has made larger or smaller: its masks are drawn for other sizes, which is no change of training.

A batch of sentences that is padded to a multiple of eight, or no further than its longest, drops other elements although it computes the
same. Then the two versions can only be compared without dropout. What a rewrite drops from another place, or with another
probability, such a comparison would not show; so the same layers have to run in the same order, dropout has to be called as often, with the
same probabilities, and what it is given may differ in the sizes alone that differ in what the layers give.
"""

from __future__ import annotations

from ..execution.observations import Observations
from .layers import outputs_by_call


def resized(original: Observations, other: Observations) -> dict[int, int]:
    """The sizes of the original that are others in ``other``, where dropout differs by these alone; else empty."""
    ours, theirs = original.first_dropouts, other.first_dropouts
    if len(ours) != len(theirs) or _counts(original) != _counts(other):
        return {}
    if any(p != q or len(a) != len(b) for (p, a), (q, b) in zip(ours, theirs, strict=True)):
        return {}
    sizes: dict[int, int] = {}
    given = _sizes_of_layers(original, other)
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


def _sizes_of_layers(original: Observations, other: Observations) -> dict[int, int]:
    """What the sizes of what the layers give are in ``other``, where each is always the same there."""
    ours, theirs = outputs_by_call(original), outputs_by_call(other)
    if list(ours) != list(theirs):
        return {}
    found: dict[int, set[int]] = {}
    for call, one in ours.items():
        for a, b in zip(one.output.shape, theirs[call].output.shape, strict=False):
            found.setdefault(a, set()).add(b)
    return {a: b for a, (b, *others) in found.items() if not others}
