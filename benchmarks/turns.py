"""Versions of a script timed by turns, and what that says about their speeds."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torchopt_cli.optimizer.execution.observations import (
    ENDED_WELL,
    Memory,
    Observations,
    Timing,
    said_last,
)
from torchopt_cli.optimizer.execution.runner import RunSettings, ScriptVersion, run
from torchopt_cli.optimizer.execution.turn_taking import Start, run_in_turns
from torchopt_cli.optimizer.measuring.measurement import (
    Run,
    Speedup,
    TooShort,
    log_speedup,
    read_run,
    speedup,
)
from torchopt_cli.optimizer.terminal import counted

_Name = TypeVar("_Name")


@dataclass(frozen=True)
class TurnRun:
    """A timed run, and its mean CPU time in seconds from one step to the next, workers included."""

    run: Run
    timing: Timing
    processor_seconds: float | None
    memory: Memory


@dataclass(frozen=True)
class Contestant:
    """A version to time, and how."""

    version: ScriptVersion
    settings: RunSettings


def take_turns(
    contestants: Mapping[_Name, Contestant],
    sweeps: int,
    tell: Callable[[str], None],
    *,
    at_once: int = 0,
) -> dict[_Name, list[TurnRun] | str]:
    """The ``sweeps`` runs of each; of one that fails, how it did.

    The runs of as many sweeps as ``at_once`` start at the same time, which memory must suffice for: where a start takes
    longer than what is timed, one is waited for instead of all. With 0 they start one after the other.
    """
    found: dict[_Name, list[TurnRun]] = {name: [] for name in contestants}
    failed: dict[_Name, str] = {}
    length = max(1, at_once)
    passes = [range(i, min(i + length, sweeps)) for i in range(0, sweeps, length)]
    with tempfile.TemporaryDirectory(prefix="torchopt-", ignore_cleanup_errors=True) as temporary:
        for together in passes:
            names = [name for name in contestants if name not in failed]
            which = f"sweep {together.stop} of {sweeps}"
            tell(f"{which}: {counted(len(names) * len(together), 'run')}")
            began = time.monotonic()
            order = [(name, i) for i in together for name in (names if i % 2 == 0 else names[::-1])]
            starts = [
                Start(
                    contestants[name].version,
                    contestants[name].settings,
                    Path(temporary) / f"{names.index(name)}-{sweep}",
                )
                for name, sweep in order
            ]
            seen = run_in_turns(starts, run, start_together=at_once > 0)
            took = time.monotonic() - began
            stepping = sum(sum(one.timing.round_seconds) for one in seen)
            tell(f"{which}: took {took:.0f} s, {stepping:.0f} s of them in steps")
            for (name, _), one in zip(order, seen, strict=True):
                try:
                    found[name].append(_read(one))
                except (TooShort, _Failed) as error:
                    failed[name] = str(error)
    return {name: failed.get(name, runs) for name, runs in found.items()}


class _Failed(Exception):
    """A run failed; the last line it said."""


def _read(seen: Observations) -> TurnRun:
    if seen.status not in ENDED_WELL:
        raise _Failed(said_last(seen.failure_details) or seen.status.value)
    rounds = seen.timing.round_seconds
    computed = seen.timing.processor_seconds
    return TurnRun(
        read_run(seen.timing),
        seen.timing,
        computed / len(rounds) if computed is not None and rounds else None,
        seen.memory,
    )


def summary(runs: list[TurnRun], originals: list[TurnRun]) -> dict[str, Any]:
    """What a version's runs come to beside those of the original in the same sweeps. Seconds per step, and bytes.

    ``round_seconds`` has evaluation and the start of an epoch in it, as ``speedup`` has.
    """
    steps = [one.run.median_seconds for one in runs]
    rounds = [one.run.round_seconds for one in runs]
    pairs = list(zip(originals, runs, strict=True))
    return {
        "step_seconds": statistics.geometric_mean(steps),
        "round_seconds": statistics.geometric_mean(rounds),
        "speedup": _ends(speedup([log_speedup(a.timing, b.timing) for a, b in pairs])),
        "data_wait_share": statistics.fmean(one.run.data_wait_share for one in runs),
        **_computing(pairs),
        "host_memory": _most(one.memory.host for one in runs),
        "worker_memory": _most(one.memory.worker for one in runs),
        "device_memory": _most(one.memory.device for one in runs),
        "steps": steps,
        "rounds": rounds,
    }


def _computing(pairs: list[tuple[TurnRun, TurnRun]]) -> dict[str, Any]:
    """CPU time per round, and the original's over it."""
    found = [(a.processor_seconds, b.processor_seconds) for a, b in pairs]
    known = [(a, b) for a, b in found if a and b]
    if len(known) < len(found):
        return {}
    return {
        "processor_seconds": statistics.geometric_mean([b for _, b in known]),
        "processor_ratio": _ends(speedup([math.log(a / b) for a, b in known])),
    }


def _ends(found: Speedup) -> dict[str, float | None]:
    """JSON knows no infinity: without an interval its ends are None."""
    known = math.isfinite(found.high)
    return {
        "factor": found.factor,
        "low": found.low if known else None,
        "high": found.high if known else None,
    }


def _most(values: Any) -> int | None:
    return max((value for value in values if value), default=None)
