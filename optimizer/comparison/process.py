"""How the run ended: exit status, crash, time limit, GPUs that are not there."""

from __future__ import annotations

from ..execution.observations import ENDED_WELL, Observations, Status
from ..failure_hints import compiler_hint
from ..terminal import counted
from .findings import Finding, Kind


def compare_process(original: Observations, other: Observations) -> list[Finding]:
    """The exit status, when it is not the original's; ``original`` is taken to have ended well."""
    if other.status in ENDED_WELL:
        return []
    if other.status is Status.TIMED_OUT:
        message = (
            f"only {counted(other.rounds, 'step')} at the time limit of {other.timing.total_seconds:.0f} s; "
            f"the original took {original.timing.total_seconds:.0f} s for {original.rounds}"
        )
        return [Finding(Kind.TIME_LIMIT, message)]
    when = (
        f"after {counted(other.rounds, 'step')}"
        if other.rounds
        else "before the first step is complete"
    )
    there = original.versions.gpus if original.versions else 0
    if 0 < there < len(other.ranks):
        message = f"{len(other.ranks)} processes need a GPU each, and the machine has {there}"
        return [Finding(Kind.TOO_FEW_GPUS, f"{message}: {other.ending}")]
    hint = compiler_hint(other.failure_details)
    message = f"{when}, where the original does not: {other.ending}{hint}"
    if other.status is Status.OVER_LIMIT:
        return [Finding(Kind.RESOURCE_LIMIT, f"is ended {message}")]
    return [
        Finding(
            Kind.EXIT_STATUS,
            f"fails {message}",
            original=original.exit_code if original.exit_code is not None else 0,
            rewritten=other.exit_code,
        )
    ]
