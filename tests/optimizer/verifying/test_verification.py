"""How a verification goes, with runs made up; see test_verification_runs.py for real ones."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.errors import ExitCode, TorchoptError
from torchopt_cli.optimizer.execution.limits import Bound, Exceeded
from torchopt_cli.optimizer.execution.observations import (
    LoaderPass,
    Loss,
    Observations,
    OptimizerInfo,
    ParameterInfo,
    ParameterUpdate,
    Status,
    Step,
    Timing,
    Versions,
)
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.verifying import verification
from torchopt_cli.optimizer.verifying.original_runs import OriginalRuns, original_runs
from torchopt_cli.optimizer.verifying.result import exit_code
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import Progress, verify, verify_against

ORIGINAL, REWRITTEN = ScriptVersion(Path("train.py")), ScriptVersion(Path("train_fast.py"))

Answer = Callable[[bool, RunSettings], Observations]


def observed(losses: tuple[float, ...] = (2.0, 1.5, 1.0), **changes: object) -> Observations:
    steps = tuple(
        Step(
            i,
            i,
            0,
            (Loss(value, "float32"),),
            (0.1,),
            False,
            False,
            1.0,
            {"w": ParameterUpdate(1.0, 0.1, i)},
        )
        for i, value in enumerate(losses)
    )
    run = Observations(
        folder=Path("/nowhere"),
        status=Status.STOPPED,
        exit_code=0,
        traceback=None,
        stdout="",
        stderr="",
        stdout_cut=False,
        stderr_cut=False,
        rounds=len(losses),
        optimizer_seen=True,
        timing=Timing(1.0, 0.5, 0.2, (0.1,) * 20, (0.0,) * 20),
        versions=Versions("3.11.0", "2.9.0", "cpu"),
        steps=steps,
        optimizers=(OptimizerInfo("SGD", (("w",),), ({},)),),
        parameters={"w": ParameterInfo((3,), "float32", "cpu", True)},
        loader_passes=(LoaderPass(0, 0, len(losses), 4 * len(losses), False),),
    )
    return replace(run, **changes)


class FakeRuns:
    """Stands in for the runner: answers by who runs and how, and keeps what was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, RunSettings]] = []
        self.folders: list[Path] = []

    def __call__(self, version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
        original = version is ORIGINAL
        self.folders.append(folder)
        self.asked.append(("original" if original else "rewritten", settings))
        return self.answer(original, settings)

    def count(self, who: str, mode: Mode) -> int:
        return sum(name == who and settings.mode is mode for name, settings in self.asked)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VerifySettings:
    monkeypatch.chdir(tmp_path)
    for version in (ORIGINAL, REWRITTEN):
        version.entry.write_text("", encoding="utf-8")
    return VerifySettings(python=Path("python"), cwd=tmp_path, steps=3, measure_speed=False)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], FakeRuns]:
    def install(answer: Answer) -> FakeRuns:
        runs = FakeRuns(answer)
        monkeypatch.setattr(verification, "run", runs)
        return runs

    return install


Fake = Callable[[Answer], FakeRuns]


def test_equal_runs_are_equivalent_and_need_no_more_than_three(
    fake: Fake, settings: VerifySettings
) -> None:
    runs = fake(lambda original, how: observed())
    report = verify(ORIGINAL, REWRITTEN, settings)
    assert report.verdict is not None
    assert (report.verdict.outcome, report.verdict.tier) == (Outcome.EQUIVALENT, Tier.EXACT)
    assert exit_code(report) is ExitCode.OK
    assert len(runs.asked) == report.runs == 3


def test_what_could_not_be_recorded_is_not_taken_for_equal(
    fake: Fake, settings: VerifySettings
) -> None:
    fake(lambda original, how: observed(unobserved=("step hook: TypeError: no",)))
    report = verify(ORIGINAL, REWRITTEN, settings)
    assert report.verdict is not None
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "step hook: TypeError: no" in report.verdict.reason
    assert exit_code(report) is ExitCode.FINDINGS


def test_a_second_run_that_hits_the_limit_is_no_repetition(
    fake: Fake, settings: VerifySettings
) -> None:
    late = Exceeded(Bound.TIME, "600 s are over")
    runs = iter([observed(), observed(), observed((), status=Status.TIMED_OUT, exceeded=late)])
    fake(lambda original, how: next(runs))
    with pytest.raises(TorchoptError, match="over the time limit: 600 s are over"):
        verify(ORIGINAL, REWRITTEN, settings)


def going_on(first: Observations) -> Answer:
    """The first run goes on as ``first`` did; the others take as many steps as they are asked for."""

    def answer(original: bool, how: RunSettings) -> Observations:
        return first if how.epoch_seconds else observed((2.0, 1.5, 1.0, 0.9, 0.8)[: how.steps])

    return answer


@pytest.mark.parametrize(
    ("first", "steps"),
    [
        (observed((2.0, 1.5, 1.0, 0.9)), 4),
        # One that ends by itself shall be seen to: the others may take a step more.
        (observed((2.0, 1.5, 1.0, 0.9), status=Status.COMPLETED, exit_code=0), 5),
        (observed(), 3),
        (observed(status=Status.COMPLETED, exit_code=0), 4),
        (observed((2.0, 1.5), status=Status.COMPLETED, exit_code=0), 3),
    ],
)
def test_all_runs_are_as_long_as_the_first_that_sees_the_end_of_an_epoch(
    fake: Fake, settings: VerifySettings, first: Observations, steps: int
) -> None:
    runs = fake(going_on(first))
    verify(ORIGINAL, REWRITTEN, replace(settings, epoch_seconds=9.0))
    (_, how), *others = runs.asked
    assert (how.steps, how.epoch_seconds) == (3, 9.0)
    assert {(one.steps, one.epoch_seconds) for _, one in others} == {(steps, 0.0)}


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (observed((2.0, 1.5, 1.0, 0.9), cut=True), ""),
        (observed((2.0, 1.5, 1.0, 0.9), cut=True, epoch_rounds=3), ""),
        (observed(cut=True), ""),
        (
            observed((2.0, 1.5, 1.0, 0.9), status=Status.FAILED, traceback="KeyError: 'x'"),
            "the original fails after 4 steps, so that 3 are compared: KeyError: 'x'",
        ),
        (
            observed(
                (2.0, 1.5, 1.0, 0.9),
                status=Status.TIMED_OUT,
                exceeded=Exceeded(Bound.TIME, "600 s are over"),
            ),
            "the original fails after 4 steps, so that 3 are compared: over the time limit: 600 s are over",
        ),
    ],
)
def test_what_ends_badly_behind_the_steps_asked_for_is_run_again_for_those(
    fake: Fake, settings: VerifySettings, first: Observations, told: str
) -> None:
    runs = fake(going_on(first))
    report = verify(ORIGINAL, REWRITTEN, replace(settings, epoch_seconds=9.0))
    assert report.verdict is not None
    assert report.verdict.outcome is Outcome.EQUIVALENT
    assert "; ".join(finding.message for finding in report.verdict.findings) == told
    assert [one.steps for _, one in runs.asked] == [3, 3, 3, 3]
    assert report.seen.steps == 3


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"cut": True}, ""),
        (
            {"status": Status.FAILED, "traceback": "KeyError: 'x'"},
            "the original fails after 5 steps, so that 4 are compared: KeyError: 'x'",
        ),
    ],
)
def test_a_run_that_is_cut_behind_its_first_epoch_is_run_again_for_that(
    fake: Fake, settings: VerifySettings, changed: dict[str, object], told: str
) -> None:
    first = observed((2.0, 1.5, 1.0, 0.9, 0.8), epoch_rounds=4, **changed)
    runs = fake(going_on(first))
    report = verify(ORIGINAL, REWRITTEN, replace(settings, epoch_seconds=9.0))
    assert report.verdict is not None
    assert "; ".join(finding.message for finding in report.verdict.findings) == told
    assert [one.steps for _, one in runs.asked] == [3, 4, 4, 4]


def test_an_original_that_fails_within_the_steps_asked_for_fails(
    fake: Fake, settings: VerifySettings
) -> None:
    fake(going_on(observed((2.0, 1.5), status=Status.FAILED, traceback="KeyError: 'x'")))
    report = verify(ORIGINAL, REWRITTEN, replace(settings, epoch_seconds=9.0))
    assert report.original_failure is not None
    assert exit_code(report) is ExitCode.SCRIPT_FAILED


def test_timing_runs_are_interleaved_and_follow_the_verdict(
    fake: Fake, settings: VerifySettings
) -> None:
    runs = fake(lambda original, how: observed())
    report = verify(ORIGINAL, REWRITTEN, replace(settings, measure_speed=True, pairs=2))
    assert [who for who, how in runs.asked if how.mode is Mode.TIME] == [
        "original",  # for its pace
        "original",
        "rewritten",
        "rewritten",
        "original",
    ]
    assert report.measurement is not None
    assert report.measurement.original.samples_per_second == pytest.approx(40.0)


def test_runs_are_as_long_as_the_pace_without_the_observer_asks_for(
    fake: Fake, settings: VerifySettings
) -> None:
    quick = Timing(1.0, 0.5, 0.002, (0.001,) * 20, (0.0,) * 20)
    runs = fake(
        lambda original, how: observed(timing=quick) if how.mode is Mode.TIME else observed()
    )
    verify(ORIGINAL, REWRITTEN, replace(settings, measure_speed=True, pairs=1))
    first, *pair = [how for _, how in runs.asked if how.mode is Mode.TIME]
    assert (first.steps, [how.steps for how in pair]) == (settings.steps, [5000, 5000])


def test_a_script_that_does_something_else_is_not_timed(
    fake: Fake, settings: VerifySettings
) -> None:
    runs = fake(lambda original, how: observed() if original else observed((2.0, 1.5, 0.5)))
    report = verify(ORIGINAL, REWRITTEN, replace(settings, measure_speed=True, tier=Tier.EXACT))
    assert exit_code(report) is ExitCode.NOT_EQUIVALENT
    assert runs.count("rewritten", Mode.TIME) == 0
    assert report.speed_note is not None


def test_the_original_failing_is_its_own_outcome(fake: Fake, settings: VerifySettings) -> None:
    fake(
        lambda original, how: observed(status=Status.FAILED, exit_code=1, traceback="KeyError: 'x'")
    )
    report = verify(ORIGINAL, REWRITTEN, settings)
    assert report.verdict is None
    assert report.original_failure is not None
    assert "KeyError" in report.original_failure.details
    assert exit_code(report) is ExitCode.SCRIPT_FAILED


def test_the_rewrite_failing_alone_is_not_equivalent(fake: Fake, settings: VerifySettings) -> None:
    bad = observed(status=Status.FAILED, exit_code=1, traceback="KeyError: 'x'")
    fake(lambda original, how: observed() if original else bad)
    report = verify(ORIGINAL, REWRITTEN, settings)
    assert report.verdict is not None
    assert [f.kind for f in report.verdict.failures] == [Kind.EXIT_STATUS]
    assert report.rewritten_failure is not None
    assert exit_code(report) is ExitCode.NOT_EQUIVALENT


def test_the_rewrite_failing_only_when_timed_is_not_equivalent(
    fake: Fake, settings: VerifySettings
) -> None:
    bad = observed(status=Status.FAILED, exit_code=1, traceback="KeyError: 'x'")
    fake(lambda original, how: bad if how.mode is Mode.TIME and not original else observed())
    report = verify(ORIGINAL, REWRITTEN, replace(settings, measure_speed=True))
    assert exit_code(report) is ExitCode.NOT_EQUIVALENT
    assert report.measurement is None


@pytest.mark.parametrize(
    ("run", "word"),
    [
        (observed((), optimizer_seen=True), "no step of it"),
        (observed((), optimizer_seen=False), "no optimizer"),
        (
            observed(
                (2.0,), status=Status.TIMED_OUT, exceeded=Exceeded(Bound.TIME, "9 s are over")
            ),
            "ended after 1 of 3 steps, over the time limit: 9 s are over",
        ),
        (
            observed((2.0,), status=Status.OVER_LIMIT, exceeded=Exceeded(Bound.MEMORY, "too much")),
            "ended after 1 of 3 steps, over the memory limit: too much",
        ),
    ],
)
def test_nothing_to_compare_is_an_error_of_use(
    fake: Fake, settings: VerifySettings, run: Observations, word: str
) -> None:
    fake(lambda original, how: run)
    with pytest.raises(TorchoptError, match=word) as error:
        verify(ORIGINAL, REWRITTEN, settings)
    assert error.value.exit_code is ExitCode.USAGE


def test_a_finding_that_no_rounding_explains_needs_no_further_runs(
    fake: Fake, settings: VerifySettings
) -> None:
    fewer = observed(loader_passes=())
    runs = fake(lambda original, how: observed() if original else fewer)
    report = verify(ORIGINAL, REWRITTEN, settings)
    assert exit_code(report) is ExitCode.NOT_EQUIVALENT
    assert len(runs.asked) == 3


def test_an_original_that_does_not_repeat_itself_is_run_a_third_time(
    fake: Fake, settings: VerifySettings
) -> None:
    values = iter([2.0, 2.0, 2.001, 1.999, 2.0005])
    runs = fake(lambda original, how: observed((next(values), 1.5)))
    verify(ORIGINAL, REWRITTEN, replace(settings, tier=Tier.EXACT))
    assert runs.count("original", Mode.OBSERVE) == 3


def test_the_precision_is_taken_from_the_run_and_reduced_precision_is_switched_off_once(
    fake: Fake, settings: VerifySettings
) -> None:
    half = observed((2.001, 1.499, 1.001), compute_dtypes=("bfloat16",))
    runs = fake(lambda original, how: observed() if original or how.full_precision else half)
    report = verify(ORIGINAL, REWRITTEN, settings)
    assert report.verdict is not None
    assert report.verdict.precision is Precision.BFLOAT16
    assert report.same_arithmetic is not None
    assert report.same_arithmetic.outcome is Outcome.EQUIVALENT
    assert report.verdict.outcome is Outcome.EQUIVALENT
    perturbations = [how.perturb for _, how in runs.asked if how.perturb]
    assert [p.dtype for p in perturbations] == ["bfloat16"] * settings.perturbed_runs
    assert len({p.seed for p in perturbations}) == settings.perturbed_runs


def test_wrong_arithmetic_under_reduced_precision_is_not_equivalent(
    fake: Fake, settings: VerifySettings
) -> None:
    half = observed((2.001, 1.499, 1.001), compute_dtypes=("bfloat16",))
    wrong = observed((2.0, 1.5, 0.9))

    def answer(original: bool, how: RunSettings) -> Observations:
        return observed() if original else wrong if how.full_precision else half

    fake(answer)
    report = verify(ORIGINAL, REWRITTEN, settings)
    assert exit_code(report) is ExitCode.NOT_EQUIVALENT
    assert report.verdict is not None
    assert "switched off" in report.verdict.reason


def test_perturbed_runs_that_crash_leave_too_few_to_conclude(
    fake: Fake, settings: VerifySettings
) -> None:
    near = observed((2.0000001, 1.5, 1.0))

    def answer(original: bool, how: RunSettings) -> Observations:
        if how.perturb:
            return observed(status=Status.FAILED, exit_code=1)
        return observed() if original else near

    fake(answer)
    report = verify(ORIGINAL, REWRITTEN, settings)
    assert exit_code(report) is ExitCode.FINDINGS


def test_semantic_changes_are_inconclusive(fake: Fake, settings: VerifySettings) -> None:
    fake(lambda original, how: observed() if original else observed((2.0, 1.2, 0.3)))
    report = verify(ORIGINAL, REWRITTEN, replace(settings, tier=Tier.SEMANTIC))
    assert exit_code(report) is ExitCode.FINDINGS


def test_the_originals_runs_serve_several_rewrites(
    fake: Fake, settings: VerifySettings, tmp_path: Path
) -> None:
    near = observed((2.0000001, 1.5, 1.0))
    runs = fake(lambda original, how: observed() if original else near)
    kept = OriginalRuns(ORIGINAL, tmp_path)
    exact = replace(settings, tier=Tier.EXACT)
    verify_against(kept, REWRITTEN, exact)
    assert (runs.count("original", Mode.OBSERVE), kept.count) == (2, 2)
    first = verify_against(kept, REWRITTEN, settings)
    needed = 2 + settings.perturbed_runs
    assert (runs.count("original", Mode.OBSERVE), kept.count) == (needed, needed)
    assert verify_against(kept, REWRITTEN, settings) == first
    assert runs.count("original", Mode.OBSERVE) == needed
    assert runs.count("rewritten", Mode.OBSERVE) == 3
    assert first.runs == needed + 1, "all that the report rests on"
    verify_against(kept, REWRITTEN, replace(exact, seed=1))
    verify_against(kept, REWRITTEN, replace(exact, steps=2))
    assert runs.count("original", Mode.OBSERVE) == needed + 4, "other runs than those kept"
    assert len(set(runs.folders)) == len(runs.folders)


def test_kept_runs_are_judged_as_new_ones_would_be(
    fake: Fake, settings: VerifySettings, tmp_path: Path
) -> None:
    values = iter([2.0, 2.001, 1.999])
    kept = OriginalRuns(ORIGINAL, tmp_path)
    runs = fake(lambda original, how: observed((next(values), 1.5) if original else (2.0, 1.5)))
    exact = replace(settings, tier=Tier.EXACT)
    reports = [verify_against(kept, REWRITTEN, exact) for _ in range(2)]
    assert reports[0] == reports[1]
    assert reports[0].verdict is not None
    assert Kind.NOT_REPEATABLE in [finding.kind for finding in reports[0].verdict.findings]
    assert runs.count("original", Mode.OBSERVE) == 3


def test_an_original_that_fails_is_run_once(
    fake: Fake, settings: VerifySettings, tmp_path: Path
) -> None:
    runs = fake(lambda original, how: observed(status=Status.FAILED, exit_code=1, traceback="no"))
    kept = OriginalRuns(ORIGINAL, tmp_path)
    for _ in range(2):
        report = verify_against(kept, REWRITTEN, settings)
        assert exit_code(report) is ExitCode.SCRIPT_FAILED
    assert len(runs.asked) == 1


def test_speed_is_measured_anew_for_each_rewrite(
    fake: Fake, settings: VerifySettings, tmp_path: Path
) -> None:
    runs = fake(lambda original, how: observed())
    kept = OriginalRuns(ORIGINAL, tmp_path)
    timed = replace(settings, measure_speed=True, pairs=2)
    for _ in range(2):
        assert verify_against(kept, REWRITTEN, timed).measurement is not None
    assert (runs.count("original", Mode.TIME), runs.count("rewritten", Mode.TIME)) == (6, 4)
    assert runs.count("original", Mode.OBSERVE) == 2


def test_what_runs_leave_is_removed(fake: Fake, settings: VerifySettings) -> None:
    runs = fake(lambda original, how: observed())
    with original_runs(ORIGINAL) as kept:
        verify_against(kept, REWRITTEN, settings)
        of_original = [f for f in runs.folders if f.parent.exists()]
        assert len(of_original) == 2, "those of the rewrite are gone already"
    assert not any(folder.parent.exists() for folder in runs.folders)


def test_progress_counts_runs(fake: Fake, settings: VerifySettings) -> None:
    fake(lambda original, how: observed())
    told: list[Progress] = []
    verify(ORIGINAL, REWRITTEN, replace(settings, measure_speed=True, pairs=2), told.append)
    assert [p.done for p in told] == list(range(8))
    assert all(p.done < p.total for p in told)
    assert told[0].description == "original"


def seeded(gap: float) -> Answer:
    """An original whose loss hangs a little on the seed, and a rewrite that is off by ``gap``."""

    def answer(original: bool, how: RunSettings) -> Observations:
        end = 1.0 + how.seed % 3 / 10 + (0.0 if original else gap)
        return observed((2.0, 1.5 + (0.0 if original else 0.2), end))

    return answer


@pytest.mark.parametrize(
    ("gap", "code", "word"),
    [
        (0.0, ExitCode.FINDINGS, "ends no worse: over 5 seeds"),
        (9.0, ExitCode.NOT_EQUIVALENT, "end-loss: ends worse: over 5 seeds"),
        (0.1, ExitCode.FINDINGS, "cannot tell"),
    ],
)
def test_changes_of_training_are_judged_by_their_end_over_five_seeds(
    fake: Fake, settings: VerifySettings, gap: float, code: ExitCode, word: str
) -> None:
    runs = fake(seeded(gap))
    report = verify(ORIGINAL, REWRITTEN, replace(settings, tier=Tier.SEMANTIC))
    assert report.verdict is not None
    assert word in report.verdict.reason
    assert exit_code(report) is code
    assert report.seeds is not None
    assert [pair.seed for pair in report.seeds.ends[0].pairs] == [0, 1, 2, 3, 4]
    extra = [how.seed for _, how in runs.asked if how.seed]
    assert extra == [1, 1, 2, 2, 3, 3, 4, 4]


def test_other_tiers_are_run_with_more_seeds_when_asked(
    fake: Fake, settings: VerifySettings
) -> None:
    def near(original: bool, how: RunSettings) -> Observations:
        first = 2.0 if original else 2.0000001
        return observed((first, 1.5, 1.0 + how.seed / 10))

    runs = fake(near)
    assert verify(ORIGINAL, REWRITTEN, settings).seeds is None
    before = len(runs.asked)
    report = verify(ORIGINAL, REWRITTEN, replace(settings, seeds=3, seed=7))
    assert report.seeds is not None
    assert {how.seed for _, how in runs.asked[before:]} == {7, 8, 9}
    assert report.verdict is not None
    assert Kind.END_LOSS in {f.kind for f in report.verdict.findings if not f.fails}


def test_equal_runs_need_no_further_seeds(fake: Fake, settings: VerifySettings) -> None:
    runs = fake(lambda original, how: observed())
    report = verify(ORIGINAL, REWRITTEN, replace(settings, seeds=5))
    assert (report.seeds, len(runs.asked)) == (None, 3)


def test_a_rewrite_that_fails_with_another_seed_is_not_equivalent(
    fake: Fake, settings: VerifySettings
) -> None:
    def answer(original: bool, how: RunSettings) -> Observations:
        if how.seed == 2 and not original:
            return observed(status=Status.FAILED, exit_code=1, traceback="ValueError: seed 2")
        return seeded(0.0)(original, how)

    runs = fake(answer)
    report = verify(ORIGINAL, REWRITTEN, replace(settings, tier=Tier.SEMANTIC))
    assert exit_code(report) is ExitCode.NOT_EQUIVALENT
    assert report.verdict is not None
    assert "with seed 2: fails" in report.verdict.reason
    assert max(how.seed for _, how in runs.asked) == 2


def test_an_original_that_fails_with_another_seed_leaves_that_seed_out(
    fake: Fake, settings: VerifySettings
) -> None:
    def answer(original: bool, how: RunSettings) -> Observations:
        if how.seed == 2:
            return observed(status=Status.FAILED, exit_code=1)
        return seeded(0.0)(original, how)

    fake(answer)
    report = verify(ORIGINAL, REWRITTEN, replace(settings, tier=Tier.SEMANTIC))
    assert report.original_failure is None
    assert report.seeds is not None
    assert [pair.seed for pair in report.seeds.ends[0].pairs] == [0, 1, 3, 4]
