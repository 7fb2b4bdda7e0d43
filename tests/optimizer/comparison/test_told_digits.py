"""Numbers that are printed otherwise, by the digits that were not printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import Observations, Status
from torchopt_cli.optimizer.execution.runner import Perturbation

Run = Callable[..., Observations]


def judged(
    run: Observations,
    coarse: tuple[str, str],
    fine: tuple[str, str],
    *asked: bool,
    near: str | None = None,
    **end: Status,
) -> Verdict:
    """Of versions that print ``coarse``, and ``fine`` with more digits; so perturbed, the original prints ``near``, or is not asked."""
    original, other = (replace(run, stdout=text) for text in coarse)
    made: list[str] = []

    def observe(
        description: str,
        *,
        original: bool,
        more_digits: bool = False,
        perturb: Perturbation | None = None,
        **_: object,
    ):
        if not more_digits:
            return replace(run, stdout=coarse[0])
        if perturb is not None:
            assert near is not None
            return replace(run, stdout=near)
        made.append(description)
        return replace(run, stdout=fine[not original], **end)

    verdict = judge_in_stages(
        original, other, observe, tier=None, precision=None, perturbed_runs=3
    ).verdict
    assert len(made) == 2 * asked[0]
    return verdict


def test_a_rounding_over_the_edge_is_one(run: Run) -> None:
    coarse = "loss 1.5944 accuracy 0.50\n", "loss 1.5943 accuracy 0.50\n"
    fine = "loss 1.594350001 accuracy 0.5000\n", "loss 1.594349999 accuracy 0.5000\n"
    assert judged(run(), coarse, fine, True).outcome is Outcome.EQUIVALENT


def test_a_difference_that_is_no_rounding_shows(run: Run) -> None:
    coarse = "start\nloss 1.5944\n", "start\nloss 1.5943\n"
    fine = "start\nloss 1.594377301\n", "start\nloss 1.594311234\n"
    verdict = judged(run(), coarse, fine, True)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    (failure,) = verdict.failures
    assert failure.kind is Kind.STDOUT
    assert "line 2 of the output has 1.594311234, not 1.594377301" in failure.message


def test_a_small_difference_of_large_numbers_may_be_rounded_as_they_are(run: Run) -> None:
    coarse = "gain 0.00002\n", "gain 0.00001\n"
    fine = "gain 0.0000151\n", "gain 0.0000149\n"
    verdict = judged(run(), coarse, fine, True, near="gain 0.0000153\n")
    assert verdict.outcome is Outcome.EQUIVALENT


@pytest.mark.parametrize(
    ("near", "outcome"),
    [
        ("loss 0.0000065030\n", Outcome.EQUIVALENT),
        ("loss 0.0000065011\n", Outcome.NOT_EQUIVALENT),
        ("loss 0.0000065010\n", Outcome.EQUIVALENT),  # it is no evaluation's
        ("best\nloss 0.000007\n", Outcome.EQUIVALENT),  # of that nothing is known
    ],
)
def test_the_mean_of_small_losses_is_not_rounded_as_the_scores_are(
    run: Run, near: str, outcome: Outcome
) -> None:
    coarse = "loss 0.000007\n", "loss 0.000006\n"
    fine = "loss 0.0000065010\n", "loss 0.0000064990\n"
    verdict = judged(run(), coarse, fine, True, near=near)
    assert verdict.outcome is outcome
    if outcome is Outcome.NOT_EQUIVALENT:
        (failure,) = verdict.failures
        assert "line 1 of the output has 0.0000064990, not 0.0000065010" in failure.message


@pytest.mark.parametrize(
    ("fine", "end"),
    [
        (("best\nloss 1.594377301\n", "loss 1.594311234\n"), {}),
        (("loss 1.594377301\n", "loss 1.594311234\n"), {"status": Status.FAILED}),
    ],
    ids=["other lines", "fails"],
)
def test_what_goes_otherwise_with_more_digits_says_nothing(run: Run, fine, end) -> None:
    verdict = judged(run(), ("loss 1.5944\n", "loss 1.5943\n"), fine, True, **end)
    assert verdict.outcome is Outcome.EQUIVALENT


def test_nothing_is_run_where_the_numbers_are_the_same_or_too_far(run: Run) -> None:
    same = "loss 1.5944\n", "loss 1.5944\n"
    assert judged(run(), same, same, False).outcome is Outcome.EQUIVALENT
    far = "loss 1.5944\n", "loss 1.5934\n"
    assert judged(run(), far, far, False).outcome is Outcome.NOT_EQUIVALENT
