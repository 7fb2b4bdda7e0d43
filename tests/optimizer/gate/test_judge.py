"""One gated script, with verification, runs and profiles made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.observations import Observations, Status, Timing
from torchopt_cli.optimizer.execution.profile_record import Phase
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion
from torchopt_cli.optimizer.gate import judge as module
from torchopt_cli.optimizer.gate.judge import Gated, Job, Limits, judge
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.profiling.profile import PhaseTime, ProfileSettings, StepProfile
from torchopt_cli.optimizer.verifying.result import ScriptFailure, Seen, VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings

BEFORE, AFTER = ScriptVersion(Path("train.py")), ScriptVersion(Path("train_fast.py"))
LIMITS = Limits(Path("python"), Path("/p"))


def job(**changes: Any) -> Job:
    made = Job("train_fast.py against train.py", BEFORE, AFTER, Tier.NUMERIC, 1.2, None, 20)
    return replace(made, **changes)


class World:
    """What running the two versions would show; ``pace`` gives the seconds per step of each run in turn."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = Outcome.EQUIVALENT
        self.original_details = "Traceback\nValueError: no data\n"
        self.pace: Callable[[bool, int], float] = lambda original, number: 2.0 if original else 1.0
        self.status = Status.STOPPED
        self.settings: VerifySettings | None = None
        self.timed: list[tuple[bool, RunSettings]] = []
        self.interludes: tuple[int, ...] = ()
        self.profiled: list[int] = []

    def verify(
        self,
        before: ScriptVersion,
        after: ScriptVersion,
        settings: VerifySettings,
        progress: object,
    ) -> VerificationReport:
        self.settings = settings
        report = VerificationReport(before, after, settings, None, Seen(20, 80, 0, 0), 3)
        if self.outcome is None:
            failure = ScriptFailure(Status.FAILED, 1, self.original_details)
            return replace(report, original_failure=failure)
        findings = (Finding(Kind.LOSS, "differs", 2),)
        reason = "bit for bit the same over 20 steps"
        if self.outcome is Outcome.NOT_EQUIVALENT:
            reason = "loss at step 2: differs"
        return replace(report, verdict=Verdict(self.outcome, Tier.EXACT, None, reason, findings))

    def run(self, version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
        assert settings.mode is Mode.TIME
        original = version is BEFORE
        number = sum(one is original for one, _ in self.timed)
        self.timed.append((original, settings))
        seconds = (self.pace(original, number),) * 20
        return Observations(
            folder=folder,
            status=self.status if not original else Status.STOPPED,
            exit_code=1,
            traceback="Traceback\nKeyError: 'x'\n",
            stdout="",
            stderr="",
            stdout_cut=False,
            stderr_cut=False,
            rounds=21,
            optimizer_seen=True,
            timing=Timing(9.0, 1.0, 0.5, seconds, (0.0,) * 20, interludes=self.interludes),
        )

    def profile(self, version: ScriptVersion, settings: ProfileSettings) -> StepProfile:
        self.profiled.append(settings.steps)
        seconds = {Phase.DATA: 0.5, Phase.FORWARD: 1.0}
        if version is AFTER:
            seconds = {Phase.DATA: 0.9, Phase.FORWARD: 0.8}
        phases = tuple(PhaseTime(p, s, 0.5, s, None) for p, s in seconds.items())
        return StepProfile(None, 50, 1.5, None, phases, (), (), None, None, None, None, None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    for name in ("verify", "run", "profile"):
        monkeypatch.setattr(module, name, getattr(world, name))
    return world


def told(what: str) -> None:
    assert what


def test_equivalent_and_fast_enough(world: World) -> None:
    judgement = judge(job(), LIMITS, told)
    assert judgement.gated is Gated.PASSED
    assert judgement.speedup is not None
    assert judgement.speedup.factor == pytest.approx(2.0)
    assert judgement.phases == ()
    assert world.settings is not None
    assert (world.settings.tier, world.settings.measure_speed) == (Tier.NUMERIC, False)
    assert world.settings.emulated_gpus == 0
    first, *timed = [original for original, _ in world.timed]
    assert first  # the pace of the original decides how long the others are
    assert timed == [True, False, False, True, True, False, False, True]
    assert {settings.steps for _, settings in world.timed[1:]} == {20}


def test_runs_are_as_long_as_the_pace_wants(world: World) -> None:
    world.pace = lambda original, number: 0.1 if original else 0.05
    judge(job(), LIMITS, told)
    assert {settings.steps for _, settings in world.timed[1:]} == {100}


@pytest.mark.parametrize(
    ("outcome", "gated", "reason"),
    [
        (Outcome.NOT_EQUIVALENT, Gated.NOT_EQUIVALENT, "loss at step 2: differs"),
        (Outcome.INCONCLUSIVE, Gated.INCONCLUSIVE, "bit for bit the same over 20 steps"),
        (None, Gated.ORIGINAL_FAILED, "ValueError: no data"),
    ],
)
def test_what_is_not_equivalent_is_not_timed(
    world: World, outcome: Outcome | None, gated: Gated, reason: str
) -> None:
    world.outcome = outcome
    judgement = judge(job(), LIMITS, told)
    assert (judgement.gated, judgement.reason) == (gated, reason)
    assert judgement.measurement is None
    assert world.timed == []


def test_a_script_that_wants_arguments_is_told_where_they_go(world: World) -> None:
    world.outcome = None
    world.original_details = "usage: train.py [-h] config\ntrain.py: error: config is missing\n"
    told_last = "train.py: error: config is missing (arguments behind -- are passed to it)"
    assert judge(job(), LIMITS, told).reason == told_last


def test_not_fast_enough_names_the_phase_that_lost_most(world: World) -> None:
    world.pace = lambda original, number: 1.0 if original else 1.1
    judgement = judge(job(minimum=0.95, expected=1.0), LIMITS, told)
    assert judgement.gated is Gated.TOO_SLOW
    assert judgement.reason == (
        "0.91x [0.91, 0.91] does not reach 0.95x; "
        "most of what is lost is in data wait: 500 ms -> 900 ms per step"
    )
    assert [change.phase for change in judgement.phases] == [Phase.DATA, Phase.FORWARD]


@pytest.mark.parametrize(("interludes", "steps"), [((), 50), ((1, 10), 50), ((1, 19), 72)])
def test_as_many_steps_are_profiled_as_have_evaluations_among_them(
    world: World, interludes: tuple[int, ...], steps: int
) -> None:
    world.pace = lambda original, number: 1.0 if original else 1.1
    world.interludes = interludes
    assert judge(job(minimum=0.95, expected=1.0), LIMITS, told).gated is Gated.TOO_SLOW
    assert world.profiled == [steps, steps]


def test_noise_is_measured_away_up_to_the_limit(world: World) -> None:
    def noisy(original: bool, number: int) -> float:
        return 1.0 if original else 0.7 + 0.1 * (number % 3)

    world.pace = noisy
    judgement = judge(job(minimum=1.0), LIMITS, told)
    pairs = sum(not original for original, _ in world.timed)
    assert 4 < pairs <= LIMITS.pairs
    assert judgement.gated is Gated.PASSED
    world.timed.clear()
    judgement = judge(job(minimum=1.24), replace(LIMITS, pairs=6), told)
    assert sum(not original for original, _ in world.timed) == 6
    assert judgement.gated is Gated.TOO_SLOW
    assert "is too noisy to tell whether it reaches 1.24x" in judgement.reason


def test_under_emulation_no_speed_is_gated(world: World) -> None:
    judgement = judge(job(emulated=True), LIMITS, told)
    assert judgement.gated is Gated.PASSED
    assert judgement.speed_note == "speed was not gated: there is no GPU, CUDA was emulated"
    assert world.timed == []
    assert world.settings is not None
    assert world.settings.emulated_gpus == 1


def test_a_rewrite_that_fails_only_when_timed(world: World) -> None:
    world.status = Status.FAILED
    judgement = judge(job(), LIMITS, told)
    assert judgement.gated is Gated.NOT_EQUIVALENT
    assert judgement.reason == "the rewritten script fails when timed: KeyError: 'x'"


def test_an_original_that_fails_where_cuda_is_emulated(world: World) -> None:
    world.outcome = None
    judgement = judge(replace(job(), emulated=True), LIMITS, told)
    assert judgement.reason == "on emulated CUDA: ValueError: no data"


def test_the_script_that_is_named_anyway_is_not_named_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> VerificationReport:
        raise TorchoptError("nothing to compare", job().after.entry)

    monkeypatch.setattr(module, "verify", refuse)
    assert judge(job(), LIMITS, told).reason == "nothing to compare"


def test_what_cannot_be_compared_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> VerificationReport:
        raise TorchoptError("nothing to compare: the run shows no optimizer", Path("train.py"))

    monkeypatch.setattr(module, "verify", refuse)
    judgement = judge(job(), LIMITS, told)
    assert judgement.gated is Gated.ERROR
    assert judgement.reason == "train.py: nothing to compare: the run shows no optimizer"
