"""How many rounds a timed run takes at a time."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import Timing
from torchopt_cli.optimizer.measuring.measurement import read_run
from torchopt_cli.optimizer.measuring.timing_settings import timed_run_settings
from torchopt_cli.optimizer.verifying.settings import VerifySettings


@pytest.mark.parametrize(
    ("pace", "rounds", "host", "device"),
    [
        (0.001, 5000, 10, 500),
        (0.01, 500, 1, 50),
        (0.1, 200, 1, 5),
        (0.3, 100, 1, 2),
        (1.0, 30, 1, 1),
        (10.0, 20, 1, 1),
        (0.0, 200, 1, 1),  # unknown
    ],
)
def test_a_turn_is_half_a_second_where_a_device_computes(
    pace: float, rounds: int, host: int, device: int
) -> None:
    found = timed_run_settings(VerifySettings(Path("python"), Path()), pace, None)
    assert (found.steps, found.block_steps, found.device_block_steps) == (rounds, host, device)


@pytest.mark.parametrize("pace", [0.0005, 0.004, 0.02, 0.08, 0.3, 0.6, 1.5, 20.0])
def test_steps_of_any_length_can_be_told_on_a_device(pace: float) -> None:
    """A run that is waited for at its end only would tell nothing."""
    how = timed_run_settings(VerifySettings(Path("python"), Path()), pace, None)
    edges = [*range(0, how.steps - 1, how.device_block_steps), how.steps - 1]
    timing = Timing(
        pace * how.steps,
        round_seconds=(pace,) * (how.steps - 1),
        wait_seconds=(0.0,) * (how.steps - 1),
        synchronised=tuple(edges),
        asynchronous=True,
    )
    run = read_run(timing)
    assert run.median_seconds == pytest.approx(pace)
    assert len(list(itertools.pairwise(edges))) >= 10
