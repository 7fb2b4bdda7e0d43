"""Versions of a script timed side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..execution.observations import ENDED_WELL, Observations
from ..execution.runner import RunSettings, ScriptVersion
from ..execution.turn_taking import Runner, Start, run_in_turns
from .measurement import TimedRun


class RunFailed(Exception):
    """The run ``seen`` of ``version`` failed when timed."""

    def __init__(self, version: ScriptVersion, seen: Observations) -> None:
        super().__init__(seen.failure_details)
        self.version, self.seen = version, seen


def time_side_by_side(
    versions: Sequence[ScriptVersion],
    settings: RunSettings | Sequence[RunSettings],
    folder: Path,
    run: Runner,
    *,
    backwards: bool = False,
) -> list[TimedRun]:
    """One timed run of each of ``versions``, made by turns, the last one first if ``backwards``; ``run`` makes one.

    ``settings`` are those of all, or of each. What they leave is written to folders below ``folder``, which must be empty. Raises :class:`RunFailed`, of several
    that failed for the first.
    """
    each = [settings] * len(versions) if isinstance(settings, RunSettings) else settings
    pairs = enumerate(zip(versions, each, strict=True))
    starts = [Start(version, how, folder / f"run{number}") for number, (version, how) in pairs]
    seen = run_in_turns(starts[::-1] if backwards else starts, run)
    seen = seen[::-1] if backwards else seen
    for version, one in zip(versions, seen, strict=True):
        if one.status not in ENDED_WELL:
            raise RunFailed(version, one)
    return [TimedRun(one.timing, one.memory.device, one.memory.host) for one in seen]
