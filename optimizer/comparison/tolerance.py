"""How far rounding may carry a training run, per floating-point type; where each constant comes from.

**Unit roundoff** ``u = 2**-p`` for a significand of ``p`` bits (IEEE 754 binary64, binary32, binary16; bfloat16 and
TF32 have 8 and 11 bits: https://docs.nvidia.com/cuda/parallel-thread-execution/#alternate-floating-point-data-formats).
Rounding to nearest has a relative error of at most ``u``; machine epsilon is ``2u``.

**Roundings.** Autocast rounds the two operands of a product, its result, and in the backward pass the incoming
gradient: :data:`ROUNDINGS` = 4 per layer, so a tensor is known to ``4u`` of the scale of the sums it is made of. The
norm over all tensors of one optimizer stands for that scale, since the terms of one tensor's sum may cancel (the
bias of a convolution before BatchNorm has a gradient of exactly zero in theory and of pure rounding in practice).

**Accumulation.** Whatever the type of the operands, products are summed in float32, and another kernel sums in
another order. A sum of ``n`` terms in blocks of about ``sqrt(n)`` has a relative error of at most
``lambda * sqrt(2 * sqrt(n)) * u`` with high probability (Higham and Mary, "A new approach to probabilistic rounding
error analysis", SIAM J. Sci. Comput. 41, 2019; Blanchard, Higham and Mary, "A class of fast and accurate summation
algorithms", SIAM J. Sci. Comput. 42, 2020). :data:`ACCUMULATION` takes ``n = 2**20``, the longest reduction of usual
training (a BatchNorm statistic), and ``lambda = 5``, for which the bound fails with probability below ``1e-5`` per sum.

**Cancellation.** Where all terms of a sum cancel (the gradient of a bias before a normalization), only rounding is left, and how much
hangs on the order of the sum: kernels that add one term to the next, all of them alike (a mean over pixels gives each pixel the same
gradient), round each time the same way. What holds for any order is ``(n - 1) * u`` of the sum of the terms' sizes (Higham, "Accuracy
and Stability of Numerical Algorithms", 2002, section 4.2). So biases whose gradient is, in the original, no more than
the rounding of the sum of their terms' sizes are known to that; the runs record these sums.

**Amplification.** What a network makes of such errors differs by orders of magnitude between networks (a ResNet-50
with BatchNorm over small batches decorrelates its gradients from bfloat16 rounding alone), so it is measured: the
original is run again with its parameters changed by :func:`perturbation_scale` epsilons of the type. One perturbation
per weight of one epsilon has the variance of some 25 roundings (a rounding has a root mean square of about
``0.4u``, the perturbation is ``2u``), while a layer makes about six; the rewrite is expected at half the perturbed
runs' distance from the original. :data:`FACTOR` = 4 times the largest of those distances is the limit: eight times
the expectation, which leaves room for layers without parameters and for the luck of few samples.

**Few samples.** Not always for all of it. Once rounding has scattered a training, the rewrite is as far off as the neighbours
are, and of a quantity that is one number (the length of an output, a printed loss) three neighbours may all happen to be near:
a normally distributed one is beyond :data:`FACTOR` times the furthest of three others in 1.1 % of cases, of
eight in 0.013 %; beyond 16 times the furthest of three in 0.020 %. So what is beyond its limit by less than :data:`MARGINAL` is
judged again with :data:`MORE_NEIGHBOURS`.

**Biased rounding.** In those the gradients that are nothing but rounding also have the same signs in every step. Adam makes full steps of them,
and whether they wander or go straight on hangs on how a kernel happens to round. In training nothing depends on such a parameter (the bias
of a convolution before BatchNorm), but the running mean of the BatchNorm is some steps behind it, which evaluation sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum

from ..execution.observations import Observations

ROUNDINGS = 4
FACTOR = 4.0
MARGINAL = 4.0
MORE_NEIGHBOURS = 5


class Precision(str, Enum):
    """The floating-point type whose rounding a rewrite is allowed."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TFLOAT32 = "tfloat32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def unit_roundoff(self) -> float:
        return 2.0 ** -_SIGNIFICAND_BITS[self]

    @property
    def reduced(self) -> bool:
        """Whether this type is coarser than float32."""
        return self.unit_roundoff > Precision.FLOAT32.unit_roundoff

    @property
    def accumulator_roundoff(self) -> float:
        """That of the sums: float32 accumulators for every type but float64."""
        wide = self is Precision.FLOAT64
        return (Precision.FLOAT64 if wide else Precision.FLOAT32).unit_roundoff

    @property
    def accumulation(self) -> float:
        """Relative error of a long sum."""
        return ACCUMULATION * self.accumulator_roundoff

    @property
    def smallest_normal(self) -> float:
        """Kernels may take anything smaller for zero."""
        return 2.0 ** (-1022 if self is Precision.FLOAT64 else -126)

    @property
    def relative_error(self) -> float:
        """What one layer's rounding may do, relative to the scale of the sums it makes."""
        return ROUNDINGS * self.unit_roundoff + self.accumulation


_SIGNIFICAND_BITS = {
    Precision.FLOAT64: 53,
    Precision.FLOAT32: 24,
    Precision.TFLOAT32: 11,
    Precision.FLOAT16: 11,
    Precision.BFLOAT16: 8,
}

_LONGEST_REDUCTION = 2**20
_CONFIDENCE = 5.0
ACCUMULATION = _CONFIDENCE * math.sqrt(2 * math.sqrt(_LONGEST_REDUCTION))
"""Relative error of the longest sum, in units of the accumulator's unit roundoff (226)."""


def perturbation_scale(precision: Precision) -> float:
    """By how many epsilons of ``precision`` to change the initial parameters: one, and the error of long sums."""
    return 1.0 + precision.accumulation / (2 * precision.unit_roundoff)


def allowed(spread: Iterable[float], scale: float, precision: Precision) -> float:
    """How far a quantity may lie from the original's.

    ``spread``: how far the neighbours of the original (repeated or perturbed runs) lie from it; ``scale``: the size of
    the sums the quantity is made of. All in the quantity's unit. Infinite where a neighbour is not finite.
    """
    furthest = max(map(_distance, spread), default=0.0)
    return FACTOR * furthest + precision.relative_error * abs(scale) + precision.smallest_normal


def times_beyond(distance: float, limit: float) -> float:
    """How many times as large as ``limit`` a distance is; infinite where there is one and none is allowed."""
    if limit > 0.0:
        return distance / limit
    return math.inf if distance > 0.0 else 0.0


def coarsest(dtypes: Iterable[str]) -> Precision:
    """The coarsest of the floating-point types named, float64 only when there is no other; float32 when none is known.

    >>> coarsest(["float32", "bfloat16", "int64"]).value
    'bfloat16'
    """
    values = {precision.value for precision in Precision}
    known = [Precision(name) for name in dtypes if name in values]
    return max(known, key=lambda p: p.unit_roundoff, default=Precision.FLOAT32)


def precision_of(original: Observations, rewritten: Observations) -> Precision:
    """The coarsest type that either run computes or holds its parameters in."""
    runs = (original, rewritten)
    dtypes = {info.dtype for run in runs for info in run.parameters.values()}
    return coarsest(dtypes.union(*(run.compute_dtypes for run in runs)))


def precision_of_losses(original: Observations, rewritten: Observations) -> Precision:
    """The coarsest type of a loss of either run."""
    runs = (original, rewritten)
    return coarsest(loss.dtype for run in runs for step in run.steps for loss in step.losses)


def running_envelope(spreads: Sequence[Sequence[float]], ahead: int = 2) -> list[float]:
    """The largest distance of any neighbour from the original up to each step and ``ahead`` steps beyond it.

    ``spreads`` has one series per neighbour. Distances grow along a run and jump where a rounding flips an activation;
    a jump may come a little earlier in the rewrite than in any neighbour. The first step stands alone: no parameter
    has moved before it.
    """
    length = max((len(s) for s in spreads), default=0)
    furthest = [max(_distance(s[i]) for s in spreads if i < len(s)) for i in range(length)]
    return [
        max(furthest[: step + 1 + (ahead if step else 0)], default=0.0) for step in range(length)
    ]


def _distance(value: float) -> float:
    return value if math.isfinite(value) else math.inf
