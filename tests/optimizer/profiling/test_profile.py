"""What a profile makes of what was measured per round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.limits import Bound, Exceeded
from torchopt_cli.optimizer.execution.observations import (
    Memory,
    Observations,
    Status,
    Timing,
    Versions,
)
from torchopt_cli.optimizer.execution.profile_record import Phase, RunProfile
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.profiling import profile as profile_module
from torchopt_cli.optimizer.profiling.profile import (
    ProfileSettings,
    StepProfile,
    profile,
    summarise,
)

STEP, EVALUATED = {Phase.FORWARD: 0.01}, {Phase.FORWARD: 0.01, Phase.EVALUATION: 0.2}


def profiled(
    interludes: tuple[int, ...],
    measured: dict[int, dict[Phase, float]],
    versions: Versions | None = None,
) -> StepProfile:
    """Of 50 rounds of 10 ms, ``measured`` of them phase by phase; evaluations take 200 ms more."""
    seconds = tuple(0.21 if i in interludes else 0.01 for i in range(50))
    timing = Timing(9.0, 1.0, 0.5, seconds, (0.0,) * 50, interludes=interludes)
    profile = RunProfile(
        plain_rounds=(10, 25),
        phase_rounds=tuple(measured),
        phases=tuple(measured.values()),
        processor=tuple(measured.values()),
        memory={},
        operators=(),
        syncs=(),
        device_busy_share=None,
        loader=None,
        trace_file=None,
    )
    unused: dict[str, Any] = dict.fromkeys(("exit_code", "traceback", "stdout", "stderr"))
    seen = Observations(
        folder=Path(),
        status=Status.STOPPED,
        rounds=51,
        optimizer_seen=True,
        stdout_cut=False,
        stderr_cut=False,
        timing=timing,
        memory=Memory(),
        versions=versions,
        **unused,
    )
    return summarise(seen, profile, None)


def test_evaluations_count_as_often_as_they_come_and_not_as_often_as_they_are_measured() -> None:
    """Every 20 steps: 200 ms in 400 ms."""
    measured = {15: EVALUATED, **{i: STEP for i in range(25, 35)}, 35: EVALUATED}
    found = profiled((15, 35), measured)
    assert found.seconds(Phase.EVALUATION) == pytest.approx(0.2 / 20)
    assert found.seconds(Phase.FORWARD) == pytest.approx(0.01)
    assert found.share(Phase.EVALUATION) == pytest.approx(0.5)
    assert found.step_seconds == 0.01
    assert found.round_seconds == pytest.approx(0.02)


def test_one_evaluation_counts_as_one_of_the_rounds_of_the_run() -> None:
    found = profiled((15,), {15: EVALUATED, **{i: STEP for i in range(25, 40)}})
    assert found.seconds(Phase.EVALUATION) == pytest.approx(0.2 / 50)


@pytest.mark.parametrize(("interludes", "phases"), [((), STEP), (tuple(range(50)), EVALUATED)])
def test_where_all_rounds_are_of_a_kind_a_step_is_a_round(
    interludes: tuple[int, ...], phases: dict[Phase, float]
) -> None:
    found = profiled(interludes, {i: phases for i in range(25, 40)})
    assert found.seconds(Phase.FORWARD) == pytest.approx(0.01)
    assert found.round_seconds == found.step_seconds


def test_on_a_cpu_what_disturbs_the_measuring_of_phases_makes_no_step_longer_than_it_is() -> None:
    disturbed = {Phase.FORWARD: 0.012, Phase.OPTIMIZER: 0.004}
    found = profiled((), {i: disturbed for i in range(25, 40)})
    assert found.seconds(Phase.FORWARD) == pytest.approx(0.0075)
    assert found.seconds(Phase.OPTIMIZER) == pytest.approx(0.0025)
    assert found.share(Phase.OPTIMIZER) == pytest.approx(0.25)


def test_on_a_gpu_phases_are_as_long_as_they_were_measured() -> None:
    versions = Versions("3.12", "2.9", "cuda")
    found = profiled((), {i: {Phase.FORWARD: 0.012} for i in range(25, 40)}, versions)
    assert found.seconds(Phase.FORWARD) == pytest.approx(0.012)


@pytest.mark.parametrize(
    ("status", "exceeded", "words"),
    [
        (Status.TIMED_OUT, Exceeded(Bound.TIME, "8 s are over"), "over the time limit: 8 s"),
        (Status.COMPLETED, None, "no optimizer step to profile, 10 are needed"),
    ],
)
def test_a_script_that_is_ended_does_not_fail_by_itself(
    monkeypatch: pytest.MonkeyPatch, status: Status, exceeded: Exceeded | None, words: str
) -> None:
    unused: dict[str, Any] = dict.fromkeys(("exit_code", "traceback", "stdout_cut", "stderr_cut"))
    seen = Observations(
        folder=Path(),
        status=status,
        rounds=0,
        optimizer_seen=False,
        stdout="",
        stderr="",
        timing=Timing(8.0),
        exceeded=exceeded,
        **unused,
    )
    monkeypatch.setattr(profile_module, "run", lambda *_: seen)
    with pytest.raises(TorchoptError, match=words):
        profile(ScriptVersion(Path("train.py")), ProfileSettings(Path("python"), Path()))
