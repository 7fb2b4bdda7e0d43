"""How long gradients were before they were clipped: where clipping acts in every step, what is left of them is as long as its limit.

A loss divided twice, or gradients unscaled twice, shows there alone, until gradients are smaller than the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..execution.observations import Clip, Observations
from .findings import Finding, Kind, told_apart
from .tolerance import Precision, allowed, running_envelope, times_beyond

_L2 = (2.0, None)
"""The norm that rounding is known for; None where the script has taken it itself, which is that one as a rule."""


def compare_clipped_norms(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision,
) -> Iterator[Finding]:
    """The first step whose gradients are longer or shorter than rounding explains before both versions clip them to one limit."""
    rounds = min(original.rounds, other.rounds)
    ours, theirs, *near = (_by_round(run, rounds) for run in (original, other, *neighbours))
    pairs = [_pairs(a, b, precision) for a, b in zip(ours, theirs, strict=True)]
    spreads = [
        [_furthest(_pairs(a, b, precision)) for a, b in zip(ours, one, strict=True)] for one in near
    ]
    envelope = running_envelope(spreads) if spreads else [0.0] * rounds
    first: Finding | None = None
    beyond = 0.0
    for number, (found, spread) in enumerate(zip(pairs, envelope, strict=True), start=1):
        for limit, before, after in found:
            permitted = before * allowed([spread], 1.0, precision)
            times = times_beyond(abs(after - before), permitted)
            if times > 1.0 and first is None:
                shown, expected = told_apart(after, before)
                message = (
                    f"gradient norm before it is clipped to {limit:g}: {shown}, not {expected} "
                    f"(allowed difference {permitted:.2g})"
                )
                first = Finding(
                    Kind.GRADIENT, message, step=number, original=before, rewritten=after
                )
            beyond = max(beyond, times)
    if first is not None:
        yield replace(first, beyond=beyond)


def _by_round(run: Observations, rounds: int) -> list[list[Clip]]:
    """The calls of ``run`` that clip by norm, and do, in each of the first ``rounds``."""
    found: list[list[Clip]] = [[] for _ in range(rounds)]
    for clip in run.clips:
        by_norm = clip.acts and clip.by == "norm" and clip.norm_type in _L2
        if by_norm and clip.rounds < rounds and clip.size is not None and math.isfinite(clip.size):
            found[clip.rounds].append(clip)
    return found


def _pairs(
    ours: Sequence[Clip], theirs: Sequence[Clip], precision: Precision
) -> list[tuple[float, float, float]]:
    """The limit and both norms of each call that has its like in the other run; of several alike, by their size.

    Nothing where the versions do not clip the same there.
    """
    ours, theirs = (sorted(clips, key=_order) for clips in (ours, theirs))
    same = len(ours) == len(theirs) and all(
        a.elements == b.elements
        and math.isclose(a.limit, b.limit, rel_tol=precision.relative_error)
        for a, b in zip(ours, theirs, strict=True)
    )
    if not same:
        return []
    return [
        (a.limit, a.size, b.size)
        for a, b in zip(ours, theirs, strict=True)
        if a.size is not None and b.size is not None
    ]


def _order(clip: Clip) -> tuple[int, float, float]:
    return clip.elements, clip.limit, clip.size or 0.0


def _furthest(pairs: Sequence[tuple[float, float, float]]) -> float:
    """How far apart the norms are, relative to the original's."""
    return max((abs(after - before) / before for _, before, after in pairs), default=0.0)
