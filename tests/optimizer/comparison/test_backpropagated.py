"""Losses that only one version backpropagates, for the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_exact
from torchopt_cli.optimizer.execution.observations import Loss, Observations, Step

Run = Callable[..., Observations]
Change = Callable[[Step], Step]


def changed(run: Observations, change: Change) -> Observations:
    return replace(run, steps=tuple(map(change, run.steps)))


def more_before(step: Step) -> Step:
    return replace(step, losses=(Loss(5.0, "float32"), Loss(7.0, "float32"), *step.losses))


def more_behind(step: Step) -> Step:
    return replace(step, losses=(*step.losses, Loss(5.0, "float32")))


def in_chunks(step: Step) -> Step:
    return replace(step, losses=(Loss(5.0, "float32"), Loss(7.0, "float32")))


@pytest.mark.parametrize("more", [more_before, more_behind, in_chunks])
@pytest.mark.parametrize("turned", [False, True])
def test_further_losses_are_told_where_gradients_are_the_same(
    run: Run, more: Change, turned: bool
) -> None:
    runs = run(), changed(run(), more)
    original, rewritten = reversed(runs) if turned else runs
    verdict = judge_exact(original, [original], rewritten)
    assert verdict.outcome is Outcome.EQUIVALENT
    assert [(f.kind, f.fails) for f in verdict.findings] == [(Kind.BACKWARD_CALLS, False)]


def test_what_both_backpropagate_is_compared_all_the_same(run: Run) -> None:
    def later(step: Step) -> Step:
        loss = step.losses[0]
        return step if step.round < 3 else replace(step, losses=(replace(loss, value=9.0),))

    verdict = judge_exact(run(), [run()], changed(changed(run(), later), more_before))
    (failure,) = verdict.failures
    assert (failure.kind, failure.step) == (Kind.LOSS, 4)


def test_gradients_that_a_further_loss_adds_to_are_missed(run: Run) -> None:
    rewritten = changed(run(mistakes=["no zero_grad"]), more_before)
    rewritten = replace(rewritten, steps=rewritten.steps[1:])  # in the first there is nothing yet
    original = replace(run(), steps=run().steps[1:])
    verdict = judge_exact(original, [original], rewritten)
    assert Kind.BACKWARD_CALLS in {failure.kind for failure in verdict.failures}


@pytest.mark.parametrize(
    "change",
    [
        lambda step: replace(step, losses=()),  # nothing is backpropagated
        lambda step: replace(more_before(step), closure=True),
        lambda step: replace(more_before(step), optimizer=-1),
    ],
)
def test_a_step_without_losses_or_by_a_closure_or_by_hand_is_missed(
    run: Run, change: Change
) -> None:
    verdict = judge_exact(run(), [run()], changed(run(), change))
    assert Kind.BACKWARD_CALLS in {failure.kind for failure in verdict.failures}


def test_losses_that_add_up_to_the_same_are_compared_as_their_sum(run: Run) -> None:
    def halves(step: Step) -> Step:
        half = replace(step.losses[0], value=step.losses[0].value / 2)
        return replace(step, losses=(half, half))

    verdict = judge_exact(run(), [run()], changed(run(), halves))
    told = [f for f in verdict.findings if f.kind is Kind.BACKWARD_CALLS]
    assert [f.fails for f in told] == [False]
    assert "add up to the same" in told[0].message
