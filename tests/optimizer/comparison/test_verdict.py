from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.verdict import (
    Outcome,
    as_semantic,
    judge_exact,
    judge_numeric,
    repeats_itself,
)
from torchopt_cli.optimizer.execution.observations import Observations, Status
from torchopt_cli.optimizer.options import Tier

Run = Callable[..., Observations]
Rounding = Callable[[np.ndarray], np.ndarray]


def test_a_run_compared_with_itself_is_equivalent_in_every_tier(run: Run) -> None:
    original = run()
    near = [run(perturb=2**-7, seed=seed) for seed in range(3)]
    exact = judge_exact(original, [run()], original)
    numeric = judge_numeric(original, [run()], near, original, Precision.BFLOAT16)
    assert (exact.outcome, exact.tier, exact.precision) == (Outcome.EQUIVALENT, Tier.EXACT, None)
    assert (numeric.outcome, numeric.tier) == (Outcome.EQUIVALENT, Tier.NUMERIC)
    assert not exact.findings
    assert not numeric.findings


def test_rounding_is_not_exact(run: Run, rounding: Rounding) -> None:
    verdict = judge_exact(run(), [run()], run(rounding=rounding))
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert {Kind.LOSS, Kind.PARAMETER} <= {f.kind for f in verdict.failures}


def test_an_original_that_does_not_repeat_itself_is_compared_with_its_own_spread(run: Run) -> None:
    original, again, third, other = (run(perturb=1e-6, seed=seed) for seed in range(4))
    same_start = [
        replace(r, snapshots=(original.snapshots[0], *r.snapshots[1:]))
        for r in (again, third, other)
    ]
    assert not repeats_itself(original, again)
    verdict = judge_exact(original, same_start[:2], same_start[2])
    assert verdict.outcome is Outcome.EQUIVALENT
    assert "spread" in verdict.reason
    assert Kind.NOT_REPEATABLE in {f.kind for f in verdict.findings}
    wrong = run(perturb=1e-6, seed=3, mistakes=["labels"])
    wrong = replace(wrong, snapshots=(original.snapshots[0], *wrong.snapshots[1:]))
    assert judge_exact(original, same_start[:2], wrong).outcome is Outcome.NOT_EQUIVALENT


def test_an_original_that_starts_otherwise_each_time_is_not_held_to_its_first_start(
    run: Run,
) -> None:
    original, again, third, other = (run(perturb=1e-4, seed=seed) for seed in range(4))
    verdict = judge_exact(original, [again, third], other)
    assert verdict.outcome is Outcome.EQUIVALENT
    assert Kind.INITIAL_PARAMETERS in {f.kind for f in verdict.findings if not f.fails}
    wrong = judge_exact(original, [again, third], run(perturb=1e-4, seed=3, mistakes=["labels"]))
    assert wrong.outcome is Outcome.NOT_EQUIVALENT


def test_a_spread_that_would_hide_any_mistake_is_given_as_the_reason(run: Run) -> None:
    original, again, third, other = (run(perturb=1.0, seed=seed) for seed in range(4))
    verdict = judge_exact(original, [again, third], other)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.startswith("rounding alone takes the first step of optimizer 0 so far")


def test_too_few_neighbours_are_inconclusive(run: Run, rounding: Rounding) -> None:
    original, other = run(), run(rounding=rounding)
    near = [run(perturb=2**-7)]
    verdict = judge_numeric(original, [run()], near, other, Precision.BFLOAT16)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert Kind.LITTLE_POWER in {f.kind for f in verdict.findings}


def _noise(size: float) -> Rounding:
    return lambda values: (values * (1 + size * np.sin(1e3 * values))).astype(np.float32)


def test_a_comparison_without_power_is_inconclusive_unless_the_arithmetic_is_shown_to_be_the_same(
    run: Run,
) -> None:
    original, other = run(), run(rounding=_noise(0.1))
    wild = [run(perturb=0.9, seed=seed) for seed in range(3)]
    verdict = judge_numeric(original, [], wild, other, Precision.BFLOAT16)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    proven = judge_numeric(original, [], wild, other, Precision.BFLOAT16, same_arithmetic=True)
    assert proven.outcome is Outcome.EQUIVALENT
    assert Kind.LITTLE_POWER in {f.kind for f in proven.findings}


def test_what_is_as_near_as_without_neighbours_needs_none(run: Run) -> None:
    wild = [run(perturb=0.9, seed=seed) for seed in range(3)]
    near = run(rounding=_noise(4e-7))
    verdict = judge_numeric(run(), [], wild, near, Precision.FLOAT32)
    assert verdict.outcome is Outcome.EQUIVALENT
    wrong = judge_numeric(run(), [], wild, run(mistakes=["labels"]), Precision.FLOAT32)
    assert wrong.outcome is not Outcome.EQUIVALENT


def test_a_rewrite_of_which_a_scaler_skipped_every_step_shows_nothing(run: Run) -> None:
    original, near = run(), [run(perturb=2**-7, seed=seed) for seed in range(3)]
    skipped = replace(run(), steps=tuple(replace(s, skipped=True) for s in run().steps))
    verdict = judge_numeric(
        original, [run()], near, skipped, Precision.FLOAT16, same_arithmetic=True
    )
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "skipped every step" in verdict.reason


def test_what_weights_some_steps_behind_give_is_told(run: Run) -> None:
    original, near = run(), [run(perturb=2**-7, seed=seed) for seed in range(3)]
    steps = (replace(run().steps[0], skipped=True), *run().steps[1:])
    behind = replace(run(), steps=steps, stdout="right: a cat\n")
    original, near = (
        replace(original, stdout="right: a dog\n"),
        [replace(one, stdout="right: a dog\n") for one in near],
    )
    verdict = judge_numeric(
        original, [original], near, behind, Precision.FLOAT16, same_arithmetic=True
    )
    assert verdict.outcome is Outcome.EQUIVALENT
    assert Kind.STDOUT in {f.kind for f in verdict.findings}
    unknown = judge_numeric(original, [original], near, behind, Precision.FLOAT16)
    assert unknown.outcome is Outcome.NOT_EQUIVALENT
    made = replace(behind, steps=run().steps)
    wrong = judge_numeric(original, [original], near, made, Precision.FLOAT16, same_arithmetic=True)
    assert wrong.outcome is Outcome.NOT_EQUIVALENT


def test_semantic_changes_are_never_called_equivalent(run: Run) -> None:
    verdict = as_semantic(judge_exact(run(), [run()], run(mistakes=["other batches"])))
    assert (verdict.outcome, verdict.tier) == (Outcome.INCONCLUSIVE, Tier.SEMANTIC)
    assert not verdict.failures
    assert verdict.findings


@pytest.mark.parametrize("mistake", ["frozen", "NaN"])
def test_no_change_of_training_explains_a_frozen_parameter_or_nan(run: Run, mistake: str) -> None:
    verdict = judge_numeric(
        run(), [], [run(perturb=2**-7)], run(mistakes=[mistake]), Precision.FLOAT32
    )
    assert as_semantic(verdict).outcome is Outcome.NOT_EQUIVALENT


def test_a_crash_is_the_only_finding(run: Run) -> None:
    original = run()
    crashed = replace(run(steps=3, mistakes=["labels"]), status=Status.FAILED, exit_code=1)
    assert [f.kind for f in judge_exact(original, [run()], crashed).findings] == [Kind.EXIT_STATUS]


def test_a_rewrite_that_reaches_the_time_limit_is_inconclusive(run: Run) -> None:
    original = run()
    verdict = judge_exact(original, [run()], replace(run(steps=3), status=Status.TIMED_OUT))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.startswith("time-limit")


def test_what_was_printed_counts(run: Run) -> None:
    original = run()
    other = replace(original, stdout=original.stdout.replace("step 3", "step 4"))
    assert [f.kind for f in judge_exact(original, [original], other).failures] == [Kind.STDOUT]


def test_output_cut_off_is_compared_as_far_as_both_have_it(run: Run) -> None:
    original = replace(run(), stdout="a 1\nb 2\nc 3", stdout_cut=True)
    other = replace(original, stdout="a 1\nb 2\nc 3\nd")
    assert judge_exact(original, [original], other).outcome is Outcome.EQUIVALENT
    wrong = replace(original, stdout="a 9\nb 2\nc 3\nd")
    assert judge_exact(original, [original], wrong).outcome is Outcome.NOT_EQUIVALENT


def test_the_reason_names_the_first_finding(run: Run) -> None:
    verdict = judge_exact(run(), [run()], run(mistakes=["rate"]))
    assert verdict.reason.startswith("learning-rate at step 4")
    assert [step.step for step in verdict.steps] == list(range(1, 9))
