"""How the run ended: exit status, crash, time limit."""

from __future__ import annotations

from ..execution.observations import Observations, Status
from .findings import Finding, Kind

ENDED_WELL = frozenset({Status.COMPLETED, Status.STOPPED})


def compare_process(original: Observations, other: Observations) -> list[Finding]:
    """The exit status, when it is not the original's; ``original`` is taken to have ended well."""
    if other.status in ENDED_WELL:
        return []
    return [
        Finding(
            Kind.EXIT_STATUS,
            _ENDINGS[other.status].format(
                rounds=other.rounds, status=other.exit_code, last=_last_line(other.traceback)
            ),
            original=original.exit_code if original.exit_code is not None else 0,
            rewritten=other.exit_code,
        )
    ]


_ENDINGS = {
    Status.FAILED: "fails after {rounds} rounds where the original does not: {last}",
    Status.TIMED_OUT: "had done {rounds} rounds at the time limit, which the original kept",
    Status.KILLED: "the process died after {rounds} rounds (exit status {status}); the original's did not",
}


def _last_line(traceback: str | None) -> str:
    lines = (traceback or "").strip().splitlines()
    return lines[-1] if lines else "no traceback"
