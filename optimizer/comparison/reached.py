"""What lies behind the end of the original's own perturbed runs: a script may stop by a number, and each run of it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..execution.observations import Observations
from .findings import BETWEEN_STEPS, Finding, Kind, Severity

_VALUES = frozenset(
    {Kind.LOSS, Kind.GRADIENT, Kind.UPDATE, Kind.PARAMETER, Kind.EVALUATION_OUTPUT, Kind.STDOUT}
)


def within_reach(
    findings: Sequence[Finding],
    original: Observations,
    neighbours: Sequence[Observations],
    fewest: int,
) -> list[Finding]:
    """``findings``, as notes those about values behind which fewer than ``fewest`` neighbours have ended: of these no spread is known."""
    rounds = sorted((run.rounds for run in neighbours), reverse=True)
    reached = rounds[fewest - 1] if len(rounds) >= fewest else original.rounds
    return [_as_note(f, reached) if _is_behind(f, reached) else f for f in findings]


def _is_behind(finding: Finding, reached: int) -> bool:
    if not finding.fails or finding.kind not in _VALUES or finding.step is None:
        return False
    if finding.kind is Kind.STDOUT and finding.beyond is None:  # other words
        return False
    rounds = finding.step - 1 if finding.kind in BETWEEN_STEPS else finding.step
    return rounds > reached


def _as_note(finding: Finding, reached: int) -> Finding:
    message = (
        f"{finding.message} (from other rounding the original itself ends after {reached} rounds)"
    )
    return replace(finding, message=message, severity=Severity.NOTE)
