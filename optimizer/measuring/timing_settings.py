"""How timed runs are made: how many rounds, and in how long turns, by the pace of the script."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..execution.observations import ENDED_WELL, Observations
from ..execution.runner import Mode, RunSettings, ScriptVersion
from ..verifying.settings import VerifySettings
from .measurement import pace
from .timed_runs import RunFailed

MOST_TIMED_ROUNDS, LEAST_SECONDS = 200, 5.0
TURN_SECONDS, FEWEST_TURNS = 0.01, 20
"""Turns are so long that handing over, a third of a millisecond, is little beside them, and so short that the machine changes
little from one to the next: of steps of half a millisecond beside five other programs on two cores, turns of 120 ms
needed four times as many as turns of 10 ms to tell as much."""
DEVICE_TURN_SECONDS, FEWEST_DEVICE_TURNS = 0.5, 10
"""Where a device computes they are longer: to wait for it leaves it without work for a moment."""


def rounds_to_time(settings: VerifySettings, step_seconds: float) -> int:
    """As many rounds as take the wanted time at that pace (0: unknown), at least as many as are observed.

    At most :data:`MOST_TIMED_ROUNDS`, where they take :data:`LEAST_SECONDS`.
    """
    if not step_seconds:
        return max(settings.steps, MOST_TIMED_ROUNDS)
    wanted = math.ceil(settings.timing_seconds / step_seconds)
    most = max(MOST_TIMED_ROUNDS, math.ceil(LEAST_SECONDS / step_seconds))
    return max(settings.steps, min(wanted, most))


def settings_by_pace(
    settings: VerifySettings,
    version: ScriptVersion,
    cache: Path,
    start: Callable[[ScriptVersion, RunSettings], Observations],
) -> RunSettings:
    """How the versions of a script are timed, by the pace of a first run of ``version`` that counts nowhere.

    Observed runs cannot tell it: what is recorded of each step may take eight times as long as a short one does. ``start``
    makes the run; raises :class:`RunFailed` when that fails.
    """
    how = replace(timed_run_settings(settings, 0.0, cache), steps=settings.steps)
    seen = start(version, how)
    if seen.status not in ENDED_WELL:
        raise RunFailed(version, seen)
    return timed_run_settings(settings, pace(seen.timing), cache)


def timed_run_settings(
    settings: VerifySettings, step_seconds: float, cache: Path | None
) -> RunSettings:
    """How a run is timed at that pace (0: unknown), with the kernels compiled in ``cache`` (None: compiled anew)."""
    rounds = rounds_to_time(settings, step_seconds)
    timed = RunSettings(
        python=settings.python,
        cwd=settings.cwd,
        steps=rounds,
        seed=settings.seed,
        mode=Mode.TIME,
        timeout_s=settings.timeout_s,
        memory_limit=settings.memory_limit,
        disk_limit=settings.disk_limit,
        env=settings.env,
        cache=cache,
    )
    return in_turns_of_their_length(timed, step_seconds)


def in_turns_of_their_length(settings: RunSettings, step_seconds: float) -> RunSettings:
    """``settings`` with blocks that are as long as turns should be at that pace (0: unknown)."""

    def rounds(seconds: float, fewest: int) -> int:
        turn = round(seconds / step_seconds) if step_seconds else 1
        return max(1, min(turn, settings.steps // fewest))

    return replace(
        settings,
        block_steps=rounds(TURN_SECONDS, FEWEST_TURNS),
        device_block_steps=rounds(DEVICE_TURN_SECONDS, FEWEST_DEVICE_TURNS),
    )
