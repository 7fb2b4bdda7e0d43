"""How far one run's tensors lie from another's, in the few numbers that a judgement needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tensors: TypeAlias = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Deviation:
    """A tensor (or many, taken as one long vector) in another run against the original's.

    ``norm``, ``other_norm`` and ``distance`` are L2 norms of the original's, the other's and their difference.
    ``finite`` tells whether the original's values are all finite, ``other_finite`` whether the other's are. Those that are NaN, or
    the same infinity, at the same places of both are left out of all of that.
    """

    norm: float
    other_norm: float
    distance: float
    finite: bool = True
    other_finite: bool = True

    @property
    def cosine(self) -> float:
        """Cosine of the angle between the two; 1 for equal vectors, 0 where one is zero or not finite."""
        if self.distance == 0.0:
            return 1.0
        if not (self.norm * self.other_norm > 0.0 and math.isfinite(self.distance)):
            return 0.0
        dot = (self.norm**2 + self.other_norm**2 - self.distance**2) / 2
        return max(-1.0, min(1.0, dot / (self.norm * self.other_norm)))

    @property
    def stretch(self) -> float:
        """How much longer the other is, relative to the original (0.1: ten per cent longer); 0 for two zeros."""
        if self.norm == 0.0:
            return 0.0 if self.other_norm == 0.0 else math.inf
        return self.other_norm / self.norm - 1.0


def deviations(original: Tensors, other: Tensors) -> dict[str, Deviation]:
    """The deviation of every tensor that both have, in float64; tensors of unequal shapes are left out."""
    return {
        name: _deviation(_wide(tensor), _wide(other[name]))
        for name, tensor in original.items()
        if name in other and other[name].shape == tensor.shape
    }


def change_deviations(
    before: Tensors, after: Tensors, other_before: Tensors, other_after: Tensors
) -> dict[str, Deviation]:
    """The deviation of how far each tensor moved from ``before`` to ``after``, each run from its own start."""
    names = [
        name
        for name in before
        if len(
            {
                t[name].shape if name in t else None
                for t in (before, after, other_before, other_after)
            }
        )
        == 1
    ]
    return {
        name: _deviation(
            _wide(after[name]) - _wide(before[name]),
            _wide(other_after[name]) - _wide(other_before[name]),
        )
        for name in names
    }


def undetermined(
    gradient: NDArray[Any], before: NDArray[Any], after: NDArray[Any], error: float
) -> float:
    """L2 norm of how far those elements may move whose gradient is not known to be of either sign.

    ``error`` is the L2 norm of the gradient's error, taken to be spread evenly over the elements. Adam's first step
    is a full learning rate long in the direction of each element's sign, unless the element is as small as its
    epsilon: then rounding decides about the length, too. So each may move as far as the furthest of them did. What is
    zero is known to be, such as the row of a word that did not come, unless all is an error (``error`` is infinite) and not all are zeros.
    """
    import numpy as np

    movement, size = _wide(after) - _wide(before), np.abs(_wide(gradient))
    unknown = size <= error / math.sqrt(gradient.size or 1)
    unknown &= (size > 0.0) | (math.isinf(error) and bool(size.any()))
    count = int(unknown.sum())
    return float(np.abs(movement[unknown]).max()) * math.sqrt(count) if count else 0.0


def together(parts: Iterable[Deviation]) -> Deviation:
    """The deviation of several tensors taken as one vector."""
    parts = tuple(parts)
    return Deviation(
        norm=math.sqrt(sum(d.norm**2 for d in parts)),
        other_norm=math.sqrt(sum(d.other_norm**2 for d in parts)),
        distance=math.sqrt(sum(d.distance**2 for d in parts)),
        finite=all(d.finite for d in parts),
        other_finite=all(d.other_finite for d in parts),
    )


def _wide(tensor: NDArray[Any]) -> NDArray[np.float64]:
    return tensor.astype("float64")


def _deviation(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Deviation:
    import numpy as np

    known = np.isfinite(ours)
    if not known.all() and np.array_equal(ours[~known], theirs[~known], equal_nan=True):
        # Masked out, or not there yet, in both runs alike: the other numbers are as good as if these were none.
        ours, theirs = ours[known], theirs[known]
    with np.errstate(invalid="ignore"):  # gradients of a step that a GradScaler skips are infinite
        distance = float(np.linalg.norm(theirs - ours))
    return Deviation(
        norm=float(np.linalg.norm(ours)),
        other_norm=float(np.linalg.norm(theirs)),
        distance=distance,
        finite=bool(np.isfinite(ours).all()),
        other_finite=bool(np.isfinite(theirs).all()),
    )
