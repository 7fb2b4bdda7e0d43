from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.scheduling import compare_scheduling, unseen_schedule
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.execution.observations import Observations, Scheduler
from torchopt_cli.optimizer.options import Tier

Run = Callable[..., Observations]


@pytest.fixture
def compared(run: Run) -> Callable[..., list[Finding]]:
    one = run(steps=8)

    def go(ours: tuple[int, ...], theirs: tuple[int, ...], skipped: bool = False) -> list[Finding]:
        before, after = (replace(one, schedulers=(Scheduler("StepLR", s),)) for s in (ours, theirs))
        if skipped:
            steps = (replace(after.steps[0], skipped=True), *after.steps[1:])
            after = replace(after, steps=steps)
        return list(compare_scheduling(before, after))

    return go


@pytest.mark.parametrize(
    ("ours", "theirs", "word", "step"),
    [
        ((4,), (4, 4), "twice as often: 2 times after step 4, not 1", 4),
        ((4,), tuple(range(1, 8)), "after every optimizer step; in the original after step 4", 1),
        ((), tuple(range(1, 8)), "in the original never within these steps", 1),
        (tuple(range(1, 8)), (4,), "no longer stepped after every optimizer step, but after", 1),
        ((4,), (), "is no longer stepped after step 4; in the original once", 4),
        ((4,), (0, 4), "before the first optimizer step; in the original after step 4", 1),
        (
            (1, 2, 3),
            (0, 0, *(s for s in range(1, 8) for _ in "abc")),
            "stepped twice before the",
            1,
        ),
        ((2, 4), (2, 4, 6), "is stepped once after step 6, where the original does not step it", 6),
        (tuple(range(1, 8)), (1, 1, 2, 2, 3, 3, 4), "is stepped twice after step 1; in", 1),
        (tuple(range(1, 8)), tuple(range(1, 7)), "is no longer stepped after step 7; in", 7),
    ],
    ids=[
        "doubled",
        "per batch",
        "per batch, no epoch",
        "per epoch",
        "lost",
        "early",
        "per accumulated batch",
        "one more",
        "twice, until the schedule ends",
        "all but the last",
    ],
)
def test_steps_at_other_times_fail_by_name(
    compared: Callable[..., list[Finding]],
    ours: tuple[int, ...],
    theirs: tuple[int, ...],
    word: str,
    step: int,
) -> None:
    (finding,) = compared(ours, theirs)
    assert (finding.kind, finding.fails, finding.step) == (Kind.SCHEDULER_STEPS, True, step)
    assert finding.message.startswith("scheduler 0 (StepLR) ")
    assert word in finding.message


def test_the_same_steps_pass(compared: Callable[..., list[Finding]]) -> None:
    assert compared((2, 4), (2, 4)) == []


def test_a_skipped_step_may_move_them(compared: Callable[..., list[Finding]]) -> None:
    assert [f.fails for f in compared((1, 2, 3), (2, 3), skipped=True)] == [False]


def test_a_scheduler_more_counts_when_it_is_stepped(run: Run) -> None:
    one = replace(run(steps=2), schedulers=(Scheduler("StepLR", (1,)),))
    silent = replace(one, schedulers=(*one.schedulers, Scheduler("StepLR", ())))
    assert list(compare_scheduling(one, silent)) == []
    stepped = replace(one, schedulers=(*one.schedulers, Scheduler("ExponentialLR", (1,))))
    (finding,) = compare_scheduling(one, stepped)
    assert "scheduler 1 (ExponentialLR)" in finding.message


@pytest.mark.parametrize("lost", [False, True], ids=["a scheduler for rates by hand", "by hand"])
def test_rates_that_only_one_version_has_a_scheduler_for_are_told(run: Run, lost: bool) -> None:
    plain = run(steps=8)
    scheduled = replace(plain, schedulers=(Scheduler("StepLR", (2, 4), changes=(4,)),))
    (finding,) = compare_scheduling(*((scheduled, plain) if lost else (plain, scheduled)))
    assert (finding.kind, finding.fails) == (Kind.SCHEDULER_STEPS, False)


@pytest.mark.parametrize("changes", [(), (8,)], ids=["none", "after the last step"])
def test_a_scheduler_that_has_not_changed_a_rate_yet_is_missed(
    run: Run, changes: tuple[int, ...]
) -> None:
    plain = run(steps=8)
    warm = Scheduler("LambdaLR", (1, 2, 8), changes=(1, 2))
    lost = Scheduler("StepLR", (4, 8), changes)
    for schedulers in ((lost,), (warm, lost)):
        (finding, *_) = compare_scheduling(replace(plain, schedulers=schedulers), plain)
        assert finding.fails


def test_a_setting_that_changes_no_rate_yet_shows_nothing(run: Run) -> None:
    one = run(steps=4)

    def having(name: str, **settings: str) -> Observations:
        return replace(one, schedulers=(Scheduler(name, (2, 4), settings=settings),))

    ours = having("ReduceLROnPlateau", patience="10", factor="0.1")
    theirs = having("ReduceLROnPlateau", patience="5", factor="0.1")
    message = unseen_schedule(ours, theirs)
    assert message is not None
    assert "scheduler 0 (ReduceLROnPlateau) has patience=5, not 10" in message
    verdict = judge_in_stages(
        ours, theirs, lambda *_, **__: ours, tier=Tier.EXACT, precision=None, perturbed_runs=3
    ).verdict
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, message)


def test_schedulers_of_other_kinds_have_no_settings_in_common(run: Run) -> None:
    one = run(steps=4)
    ours, theirs, without = (
        replace(one, schedulers=(Scheduler(name, (2, 4), settings=settings),))
        for name, settings in (
            ("StepLR", {"gamma": "0.1", "step_size": "1"}),
            ("ExponentialLR", {"gamma": "0.2"}),
            ("StepLR", {"gamma": "0.1"}),
        )
    )
    assert unseen_schedule(ours, theirs) is None
    assert unseen_schedule(ours, without) is None
    assert unseen_schedule(ours, ours) is None
