"""Biases whose gradient is zero but for rounding: how much that may be is known by the sums it is left of.

See :mod:`.tolerance`, "Cancellation".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..execution.observations import Observations
from .findings import Finding, Kind
from .tolerance import Precision, allowed, times_beyond
from .vectors import Deviations


def cancelled(original: Observations, precision: Precision) -> dict[str, tuple[float, int]]:
    """Those of ``original``, by name: the sum of the sizes of its terms (an L2 norm over the elements), and how many each element has."""
    import numpy as np

    gradients = original.gradients() if original.bias_sums else {}
    return {
        name: (size, terms)
        for name, (size, terms) in original.bias_sums.items()
        if name in gradients
        and float(np.linalg.norm(gradients[name].astype("float64"))) <= rounding_of(size, precision)
    }


def rounding_of(size: float, precision: Precision) -> float:
    """What usually is left of a sum in which all cancels, ``size`` being that of its terms: accumulators are float32, or float64."""
    exact = Precision.FLOAT64 if precision is Precision.FLOAT64 else Precision.FLOAT32
    return exact.relative_error * size


def compare_cancelled(
    sums: Mapping[str, tuple[float, int]],
    other: Deviations,
    near: Sequence[Deviations],
    precision: Precision,
) -> Iterator[Finding]:
    """The first of :func:`cancelled` whose gradient is further from the original's than rounding takes it."""
    for name, (size, terms) in sums.items():
        if name not in other or not other[name].finite:
            continue
        deviation = other[name]
        limit = (precision.relative_error + terms * precision.accumulator_roundoff) * size
        spread = (run[name].distance for run in near if name in run)
        beyond = times_beyond(deviation.distance, limit + allowed(spread, 0.0, precision))
        if beyond > 1.0 or not deviation.other_finite:
            message = "gradient of the first step, which is nothing but rounding in the original"
            yield Finding(
                Kind.GRADIENT,
                message,
                tensor=name,
                original=deviation.norm,
                rewritten=deviation.other_norm,
                beyond=beyond,
            )
            return
