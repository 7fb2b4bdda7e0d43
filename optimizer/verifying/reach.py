"""How many steps are compared: those asked for, or as many as the original's first run took to show the end of an epoch."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ..comparison.findings import Finding, Kind, note
from ..execution.observations import ENDED_WELL, Observations, Status, said_last
from ..terminal import counted


@dataclass(frozen=True)
class Reach:
    """``steps`` are compared; of these the first run has seen all, or it has to be made again for that many."""

    steps: int
    seen_whole: bool
    notes: tuple[Finding, ...] = ()


def reach_of(seen: Observations, steps: int, epoch_seconds: float) -> Reach:
    """How far to go with an original whose run, for ``steps`` and up to ``epoch_seconds`` more, showed what is ``seen``."""
    if seen.rounds < steps:
        return Reach(steps, seen_whole=True)
    if seen.ranks and seen.status is Status.STOPPED:
        further = _foretold(seen, epoch_seconds)
        return Reach(further, seen_whole=further == seen.rounds)
    if seen.status in ENDED_WELL and not seen.cut:
        # One that ended by itself shall do so again.
        return Reach(seen.rounds + (seen.status is Status.COMPLETED), seen_whole=True)
    steps = max(steps, seen.epoch_rounds or 0)
    return Reach(steps, seen_whole=False, notes=_cut_short(seen, steps))


def _foretold(seen: Observations, epoch_seconds: float) -> int:
    """The rounds after which the ranks would see the end of an epoch, where there is time for them.

    Each for itself they cannot go on: the clock of one would say so, and the others' not.
    """
    wanted = seen.epoch_rounds or 0
    pace = statistics.median(seen.timing.round_seconds or (0.0,))
    in_time = (wanted - seen.rounds) * pace <= epoch_seconds
    return wanted if wanted > seen.rounds and in_time else seen.rounds


def _cut_short(run: Observations, steps: int) -> tuple[Finding, ...]:
    """That only ``steps`` are compared, since the original's ``run`` failed behind them."""
    if run.status in ENDED_WELL:
        return ()
    last = said_last(run.failure_details) or "no traceback"
    told = f"the original fails after {counted(run.rounds, 'step')}, so that {steps} are compared: {last}"
    return (note(Kind.EXIT_STATUS, told),)
