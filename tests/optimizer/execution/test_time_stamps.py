from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import (
    Checkpoint,
    CheckpointEntry,
    Observations,
    Status,
    Timing,
    WrittenFile,
)
from torchopt_cli.optimizer.execution.time_stamps import TimeStamps, without_time_stamps

BEGUN = datetime(2026, 11, 28, 2, 17, 58, tzinfo=timezone.utc).timestamp()
STAMPS = TimeStamps(BEGUN, BEGUN + 20)


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("results/train_20261128-0218.log", "results/train_<time>.log"),
        ("runs/2026-11-28_02-18-03/log.txt", "runs/<time>/log.txt"),
        ("2026-11-28 02:18:03.123456", "<time>"),
        ("runs/Nov28_02-18-03_host", "runs/<time>_host"),
        ("out/28-11-2026_02h18m03s.csv", "out/<time>.csv"),
        ("out/02-17-59_28.11.2026.csv", "out/<time>.csv"),
        ("exp_1128_0218", "exp_<time>"),
        ("exp_261128021805", "exp_<time>"),
        ("2026_11_28", "<time>"),
        (f"run_{int(BEGUN) + 3}", "run_<time>"),
        (f"run_{BEGUN + 3.25}", "run_<time>"),
        (f"run_{int(BEGUN * 1000) + 9}", "run_<time>"),
        ("epoch 3 loss 0.1128 0.0218", "epoch 3 loss 0.1128 0.0218"),
        ("step 20261128", "step <time>"),
        ("resumed from 20261128-0216", "resumed from <time>-0216"),
        ("data of 2019-03-01 02:18:00", "data of 2019-03-01 02:18:00"),
        ("seed 1795828713000000000000", "seed 1795828713000000000000"),
        ("loss 17.1128 02:18", "loss 17.1128 02:18"),
    ],
)
def test_moments_of_the_run_are_masked(text: str, masked: str) -> None:
    assert STAMPS.masked(text) == masked


def test_another_moment_of_the_day_stays() -> None:
    assert STAMPS.masked("exp_1128_0231") == "exp_1128_0231"
    assert STAMPS.masked(f"exp_{int(BEGUN) + 40}") == f"exp_{int(BEGUN) + 40}"


def test_local_time_and_clocks_of_twelve_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-13")  # thirteen hours ahead of UTC
    time.tzset()
    assert TimeStamps(BEGUN, BEGUN + 20).masked("20261128-1518") == "<time>"
    assert TimeStamps(BEGUN, BEGUN + 20).masked("Nov-28-2026 03:18 PM") == "<time>"


def test_paths_words_and_output_of_a_run() -> None:
    entry = CheckpointEntry("str", value="'runs/20261128-021801'")
    run = Observations(
        Path("run"),
        Status.COMPLETED,
        0,
        None,
        "saved to runs/20261128-021801/best.pt",
        "",
        False,
        False,
        1,
        True,
        Timing(total_seconds=1.0),
        files=(
            WrittenFile("a_20261128-021803.txt", 1),
            WrittenFile("a_20261128-021801.txt", 1),
            WrittenFile("latest", 0, leads_to="runs/20261128-021801"),
        ),
        checkpoints=(Checkpoint("runs/20261128-021801/best.pt", 1, {"folder": entry}),),
    )
    alike = without_time_stamps(run, STAMPS)
    assert alike.stdout == "saved to runs/<time>/best.pt"
    assert [file.path for file in alike.files] == ["a_<time>.txt (2)", "a_<time>.txt (1)", "latest"]
    assert alike.files[2].leads_to == "runs/<time>"
    assert alike.checkpoints[0].path == "runs/<time>/best.pt"
    assert alike.checkpoints[0].entries["folder"].value == "'runs/<time>'"
