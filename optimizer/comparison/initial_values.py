"""Parameters that do not start as in the original.

Both runs draw the same values, so what is only drawn is the same bit for bit. What is computed from that (scaled by a norm, binarized,
made orthogonal) is known to the rounding of a long sum, whatever type the training computes in: the neighbours, by which
everything behind it is judged, start as far off (see :mod:`.tolerance`).
"""

from __future__ import annotations

from ..execution.observations import Observations
from .deviation import Deviation, deviations
from .tolerance import coarsest


def started_otherwise(original: Observations, other: Observations) -> list[str]:
    """Parameters that start further from the original's than rounding takes them, or in one version only; sorted."""
    ours, theirs = original.snapshot(0), other.snapshot(0)
    if not (ours and theirs):
        return []
    names = sorted(ours.hashes.keys() | theirs.hashes.keys())
    unequal = [name for name in names if ours.hashes.get(name) != theirs.hashes.get(name)]
    if not unequal:
        return []
    before, now = original.tensors(ours), other.tensors(theirs)
    starts = {} if before is None or now is None else deviations(before, now)
    return [name for name in unequal if not _rounded(starts.get(name), name, original, other)]


def _rounded(start: Deviation | None, name: str, *runs: Observations) -> bool:
    """Whether ``start`` is known, of one type in both ``runs``, and within the rounding of a long sum."""
    dtypes = {run.parameters[name].dtype for run in runs if name in run.parameters}
    if start is None or len(dtypes) != 1:
        return False
    return start.other_finite and start.distance <= coarsest(dtypes).accumulation * start.norm
