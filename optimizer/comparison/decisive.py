"""Which findings no rounding explains: no further run is needed then."""

from __future__ import annotations

import math

from ..execution.observations import Observations
from .findings import Finding, Kind
from .tolerance import Precision
from .verdict import Verdict, led_by

DECISIVE = frozenset(
    {
        Kind.EXIT_STATUS,
        Kind.TIME_LIMIT,
        Kind.TOO_FEW_GPUS,
        Kind.RESOURCE_LIMIT,
        Kind.RANKS,
        Kind.MISSING_OBSERVATION,
        Kind.INITIAL_PARAMETERS,
        Kind.OPTIMIZER_SETTINGS,
        Kind.SAMPLES,
        Kind.SAMPLE_ORDER,
        Kind.WORKER_RANDOMNESS,
        Kind.EVALUATION_MODE,
        Kind.SCHEDULER_STEPS,
        Kind.CHECKPOINT_KEYS,
        Kind.CHECKPOINT_SHAPE,
        Kind.CHECKPOINT_DTYPE,
    }
)
"""Kinds that no rounding explains: once seen, no further run is needed."""


_BEHIND_AN_END = frozenset({Kind.SAMPLES, Kind.SCHEDULER_STEPS})
"""Those of them that a script shows which stops by a number, of an accuracy that no longer grows say, in another epoch."""

_BITS = frozenset(
    {
        Kind.LOSS,
        Kind.PARAMETER,
        Kind.BUFFER,
        Kind.EVALUATION_OUTPUT,
        Kind.OPTIMIZER_STATE,
        Kind.WEIGHT_COPY,
    }
)
"""What the exact tier compares bit for bit, and rounding changes."""


def is_decided(verdict: Verdict, first: Observations, rewritten: Observations) -> bool:
    """Whether a decisive finding says more than that one version ends earlier, which may follow from bits that differ before."""
    ended = min(first.rounds, rewritten.rounds) if first.rounds != rewritten.rounds else math.inf
    parted = any(f.kind in _BITS and (f.step or 0) <= ended for f in verdict.failures)
    return any(
        f.kind in DECISIVE and not (parted and f.kind in _BEHIND_AN_END and (f.step or 0) > ended)
        for f in verdict.failures
    )


def for_sure(verdict: Verdict, precision: Precision) -> Verdict:
    """``verdict`` by a reason that surely is one: bits that rounding may have changed come first, and were not judged."""
    first = verdict.failures[0]
    if first.kind not in _BITS or _beyond_rounding(first, precision):
        return verdict
    return led_by(verdict, next(f for f in verdict.failures if f.kind in DECISIVE))


def _beyond_rounding(finding: Finding, precision: Precision) -> bool:
    """Whether its figures are further apart than one layer's rounding: they are those of the first step that differs."""
    before, after = finding.original, finding.rewritten
    if not isinstance(before, float) or not isinstance(after, float):
        return False
    return not abs(after - before) <= precision.relative_error * abs(before)
