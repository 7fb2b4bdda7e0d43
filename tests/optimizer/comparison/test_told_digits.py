"""Numbers that are printed otherwise, by the digits that were not printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import Observations, Status

Run = Callable[..., Observations]


def judged(
    run: Observations, coarse: tuple[str, str], fine: tuple[str, str], *asked: bool, **end: Status
) -> Verdict:
    """Of versions that print ``coarse``, and ``fine`` with more digits."""
    original, other = (replace(run, stdout=text) for text in coarse)
    made: list[str] = []

    def observe(description: str, *, original: bool, more_digits: bool = False, **_: object):
        if not more_digits:
            return replace(run, stdout=coarse[0])
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
    assert judged(run(), coarse, fine, True).outcome is Outcome.EQUIVALENT


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
