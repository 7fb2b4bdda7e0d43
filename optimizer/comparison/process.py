"""How the run ended: exit status, crash, time limit."""

from __future__ import annotations

from ..execution.observations import Observations, Status
from .findings import Finding, Kind

ENDED_WELL = frozenset({Status.COMPLETED, Status.STOPPED})


def compare_process(original: Observations, other: Observations) -> list[Finding]:
    """The exit status, when it is not the original's; ``original`` is taken to have ended well."""
    if other.status in ENDED_WELL:
        return []
    if other.status is Status.TIMED_OUT:
        message = (
            f"only {other.rounds} steps at the time limit of {other.timing.total_seconds:.0f} s; "
            f"the original took {original.timing.total_seconds:.0f} s for {original.rounds}"
        )
        return [Finding(Kind.TIME_LIMIT, message)]
    last = _last_line(other.traceback)
    return [
        Finding(
            Kind.EXIT_STATUS,
            f"fails after {other.rounds} steps where the original does not: {last}"
            if other.status is Status.FAILED
            else f"the process dies after {other.rounds} steps, and the original's does not",
            original=original.exit_code if original.exit_code is not None else 0,
            rewritten=other.exit_code,
        )
    ]


def _last_line(traceback: str | None) -> str:
    lines = (traceback or "").strip().splitlines()
    return lines[-1] if lines else "no traceback"
