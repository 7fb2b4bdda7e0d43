from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchopt_cli.optimizer.execution.observations import Observations, Status, Timing
from torchopt_cli.optimizer.verifying.reach import Reach, reach_of


def seen(rounds: int, status: Status = Status.STOPPED, **changes: Any) -> Observations:
    timing = Timing(1.0, 0.5, 0.2, (0.1,) * rounds, (0.0,) * rounds)
    return Observations(
        folder=Path("/nowhere"),
        status=status,
        exit_code=1 if status is Status.FAILED else 0,
        traceback="Traceback\nValueError: odd" if status is Status.FAILED else None,
        stdout="",
        stderr="",
        stdout_cut=False,
        stderr_cut=False,
        rounds=rounds,
        optimizer_seen=True,
        timing=timing,
        **changes,
    )


def ranks(rounds: int, **changes: Any) -> Observations:
    return seen(rounds, ranks=(seen(rounds), seen(rounds)), **changes)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (seen(5), Reach(20, seen_whole=True)),
        (seen(33), Reach(33, seen_whole=True)),
        (seen(33, Status.COMPLETED), Reach(34, seen_whole=True)),
        (seen(33, cut=True, epoch_rounds=25), Reach(25, seen_whole=False)),
        (seen(33, cut=True), Reach(20, seen_whole=False)),
    ],
    ids=["short", "epoch", "whole script", "cut behind an epoch", "cut before one"],
)
def test_one_process_goes_on_by_itself(run: Observations, expected: Reach) -> None:
    assert reach_of(run, 20, 10.0) == expected


@pytest.mark.parametrize(
    ("run", "steps"),
    [
        (ranks(20, epoch_rounds=60), 60),
        (ranks(20, epoch_rounds=121), 20),
        (ranks(20, epoch_rounds=14), 20),
        (ranks(20), 20),
    ],
    ids=["in time", "too far", "seen already", "nobody knows"],
)
def test_ranks_go_on_together_in_a_further_run(run: Observations, steps: int) -> None:
    assert reach_of(run, 20, 10.0) == Reach(steps, seen_whole=steps == 20)


def test_what_fails_behind_the_steps_is_told() -> None:
    reach = reach_of(seen(33, Status.FAILED, epoch_rounds=25), 20, 10.0)
    assert (reach.steps, reach.seen_whole) == (25, False)
    assert reach.notes[0].message == (
        "the original fails after 33 steps, so that 25 are compared: ValueError: odd"
    )
