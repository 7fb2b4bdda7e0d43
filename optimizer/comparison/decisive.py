"""Which findings no rounding explains: no further run is needed then."""

from __future__ import annotations

import math

from ..execution.observations import Observations
from .findings import BETWEEN_STEPS, Finding, Kind
from .initial_values import started_otherwise
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

_CHOSEN = frozenset({Kind.SAMPLES, Kind.SAMPLE_ORDER, Kind.CHECKPOINT_SHAPE})
"""Those that a script shows which chooses by its network what it reads next, or keeps: the samples that it is least sure of, say, or mistakes."""

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
    """Whether a decisive finding says more than may follow from bits that differ before: that one version ends earlier, or has chosen other samples.

    Ranks sum up otherwise from the first step on, and what they read is told apart by more than that.
    """
    ended = min(first.rounds, rewritten.rounds) if first.rounds != rewritten.rounds else math.inf
    parted = min((_before(f) for f in verdict.failures if f.kind in _BITS), default=math.inf)

    def may_follow(finding: Finding) -> bool:
        step = finding.step or 0
        behind = finding.kind in _BEHIND_AN_END and parted <= ended < step
        chosen = finding.kind in _CHOSEN and not rewritten.ranks
        return behind or (chosen and parted < step)

    found = _decisive(verdict, first, rewritten)
    return any(not may_follow(finding) for finding in found)


def _decisive(verdict: Verdict, first: Observations, rewritten: Observations) -> list[Finding]:
    """Failures that no rounding explains; the exact tier names initial values that are another rounding, too."""
    found = [f for f in verdict.failures if f.kind in DECISIVE]
    if any(f.kind is Kind.INITIAL_PARAMETERS for f in found):
        started = started_otherwise(first, rewritten)
        found = [f for f in found if f.kind is not Kind.INITIAL_PARAMETERS or started]
    return found


def _before(finding: Finding) -> int:
    """The step that bits were first seen to differ in, or that such an evaluation comes behind."""
    step = finding.step or 0
    return step - 1 if finding.kind in BETWEEN_STEPS else step


def for_sure(
    verdict: Verdict, first: Observations, rewritten: Observations, precision: Precision
) -> Verdict:
    """``verdict`` by a reason that surely is one: bits that rounding may have changed come first, and were not judged."""
    leading, decisive = verdict.failures[0], _decisive(verdict, first, rewritten)
    rounded = leading.kind in DECISIVE and leading not in decisive
    if leading.kind in _BITS:
        rounded = not _beyond_rounding(leading, precision)
    return led_by(verdict, decisive[0]) if rounded else verdict


def _beyond_rounding(finding: Finding, precision: Precision) -> bool:
    """Whether its figures are further apart than one layer's rounding: they are those of the first step that differs."""
    before, after = finding.original, finding.rewritten
    if not isinstance(before, float) or not isinstance(after, float):
        return False
    return not abs(after - before) <= precision.relative_error * abs(before)
