"""Gradients that one version clips and the other does not, or to another limit, where none is so large: nothing shows what it does."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..execution.observations import Clip, Observations
from .tolerance import Precision

_LEAST_SCALE = 4
"""The least power of two that is taken for a GradScaler's factor, which starts at the sixteenth."""
_OF_A_POWER = 1e-3


def unseen_clipping(
    original: Observations, other: Observations, precision: Precision = Precision.FLOAT32
) -> str | None:
    """What the versions do not have in common there, None where there is nothing, or where it changed gradients.

    Then the gradients are compared themselves, and a version may well clip by its own code.
    """
    rounds = min(original.rounds, other.rounds)
    around = int(len(original.optimizers) > 1)
    lost, added = (
        [c for c in _finite(ours) if c.rounds <= rounds and not _has(places, c, precision)]
        for ours, theirs in ((original, other), (other, original))
        for places in [_by_place(theirs, around)]
    )
    if (not lost and not added) or any(clip.acts for clip in (*lost, *added)):
        return None
    step = 1 + min(clip.rounds for clip in (*lost, *added))
    return (
        f"from step {step} on the original {_told(lost)} and the rewrite {_told(added)}; "
        "no gradient is that large here, so nothing shows what it would do to one"
    )


def clipped_while_scaled(norm: float, other: Observations) -> str:
    """What is to be told of the first gradient's ``norm`` where it is a limit that was divided by a GradScaler's factor."""
    limits = {c.limit for c in _finite(other) if c.acts and not c.rounds and c.by == "norm"}
    for limit in sorted(limits):
        power = math.log2(limit / norm) if norm > 0 and limit > 0 else 0.0
        if power >= _LEAST_SCALE and abs(power - round(power)) < _OF_A_POWER:
            return f"; that is {limit:g} / {2 ** round(power)}: is it clipped before scaler.unscale_()?"
    return ""


def _finite(run: Observations) -> Iterator[Clip]:
    """Without those that only ask for a norm."""
    return (clip for clip in run.clips if math.isfinite(clip.limit))


def _by_place(run: Observations, around: int) -> dict[int, set[Clip]]:
    """What is clipped after so many rounds, or so many ``around`` them: on the other side of another optimizer's step."""
    found: dict[int, set[Clip]] = defaultdict(set)
    for clip in run.clips:
        for place in range(clip.rounds - around, clip.rounds + around + 1):
            found[place].add(clip)
    return found


def _has(others: Mapping[int, Iterable[Clip]], clip: Clip, precision: Precision) -> bool:
    """Whether one of ``others`` is like it."""
    return any(
        one.by == clip.by
        and (one.norm_type == clip.norm_type or None in (one.norm_type, clip.norm_type))
        and math.isclose(one.limit, clip.limit, rel_tol=precision.relative_error)
        for one in others.get(clip.rounds, ())
    )


def _told(clips: Sequence[Clip]) -> str:
    if not clips:
        return "does not"
    limits = dict.fromkeys(f"a {clip.by} of {clip.limit:g}" for clip in clips)
    return f"clips gradients to {' or '.join(limits)}"
