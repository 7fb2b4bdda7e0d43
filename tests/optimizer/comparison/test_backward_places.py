"""Losses backpropagated before another optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.backward_places import Gathering, losses_in_place
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import Loss, Observations
from torchopt_cli.optimizer.options import Tier

Run = Callable[..., Observations]


def two_optimizers(
    run: Observations, losses: Sequence[Sequence[float]], *, growing: bool = True
) -> Observations:
    """``run`` with one optimizer per layer, which step after the backward calls on ``losses`` of each, ``growing`` by step."""
    (info,) = run.optimizers
    names = [[n for n in run.steps[0].parameters if layer in n] for layer in ("fc1", "fc2")]
    steps = [
        replace(
            step,
            index=2 * step.index + number,
            optimizer=number,
            losses=tuple(Loss(value + step.index * growing, "float32") for value in losses[number]),
            grad_norm=math.hypot(*(step.parameters[n].grad_norm or 0.0 for n in names[number])),
            parameters={name: step.parameters[name] for name in names[number]},
        )
        for step in run.steps
        for number in range(2)
    ]
    optimizers = tuple(replace(info, groups=(tuple(one),)) for one in names)
    return replace(run, steps=tuple(steps), optimizers=optimizers)


def judged(original: Observations, other: Observations) -> Verdict:
    return judge_in_stages(
        original,
        other,
        lambda *_, **__: original,
        tier=Tier.EXACT,
        precision=None,
        perturbed_runs=3,
    ).verdict


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([[1.0], [2.0]], [[1.0, 2.0], []]),
        ([[1.0, 2.0], []], [[1.0], [2.0]]),
        ([[1.0], [2.0, 3.0]], [[1.0, 2.0], [3.0]]),
    ],
    ids=["both at first", "each in its turn", "one of two"],
)
def test_losses_are_told_where_the_original_has_them(
    run: Run, before: list[list[float]], after: list[list[float]]
) -> None:
    verdict = judged(two_optimizers(run(), before), two_optimizers(run(), after))
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = verdict.findings
    assert (told.kind, told.step) == (Kind.BACKWARD_CALLS, 1)
    assert "with the same gradients" in told.message


@pytest.mark.parametrize(
    "after",
    [[[2.0, 1.0], []], [[1.0, 2.1], []], [[1.0], []], [[], [1.0, 2.0]]],
    ids=["other order", "other loss", "one lost", "none before the first"],
)
def test_other_losses_are_backward_calls(run: Run, after: list[list[float]]) -> None:
    original, other = two_optimizers(run(), [[1.0], [2.0]]), two_optimizers(run(), after)
    if after == [[], [1.0, 2.0]]:  # the gradients of the first step are others then
        first = replace(other.steps[0], grad_norm=0.0)
        other = replace(other, steps=(first, *other.steps[1:]))
    assert losses_in_place(original, other) is other
    verdict = judged(original, other)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert Kind.BACKWARD_CALLS in {failure.kind for failure in verdict.failures}


def test_one_more_by_the_same_gradients_is_told(run: Run) -> None:
    original, other = (
        two_optimizers(run(), [[1.0], [2.0]]),
        two_optimizers(run(), [[1.0, 2.0], [2.0]]),
    )
    assert losses_in_place(original, other) is other
    verdict = judged(original, other)
    assert verdict.outcome is Outcome.EQUIVALENT
    assert [finding.kind for finding in verdict.findings] == [Kind.BACKWARD_CALLS]


def test_a_later_gradient_that_differs_is_found(run: Run) -> None:
    original, other = (
        two_optimizers(run(), losses) for losses in ([[1.0], [2.0]], [[1.0, 2.0], []])
    )
    name, update = next(iter(other.steps[5].parameters.items()))
    changed = replace(
        other.steps[5],
        parameters={
            **other.steps[5].parameters,
            name: replace(update, checksum=update.checksum + 1),
        },
    )
    other = replace(other, steps=(*other.steps[:5], changed, *other.steps[6:]))
    verdict = judged(original, other)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.failures[0].kind is Kind.PARAMETER


def test_a_run_in_the_same_order_is_left_alone(run: Run) -> None:
    other = two_optimizers(run(), [[1.0], [2.0]])
    assert losses_in_place(two_optimizers(run(), [[1.0], [2.0]]), other) is other


def numeric(original: Observations, other: Observations) -> Verdict:
    """Judged within rounding; no neighbour differs."""
    return judge_in_stages(
        original,
        other,
        lambda *_, **__: original,
        tier=Tier.NUMERIC,
        precision=None,
        perturbed_runs=3,
    ).verdict


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([[1.0], [2.0]], [[3.0], []]),
        ([[3.0], []], [[1.0], [2.0]]),
        ([[1.0, 2.0], []], [[3.0], []]),
        ([[1.0], [2.0, 3.0]], [[1.0], [5.0]]),
    ],
    ids=["in one call", "each in its turn", "before both steps", "one of two"],
)
def test_losses_may_be_added_up_for_several_optimizers(
    run: Run, before: list[list[float]], after: list[list[float]]
) -> None:
    original = two_optimizers(run(), before, growing=False)
    other = two_optimizers(run(), after, growing=False)
    verdict = numeric(original, other)
    assert verdict.outcome is Outcome.EQUIVALENT
    assert {f.kind for f in verdict.findings} == {Kind.BACKWARD_CALLS}


@pytest.mark.parametrize(
    "after", [[[1.0], []], [[2.0], []], [[3.1], []]], ids=["one lost", "the other", "weighted"]
)
def test_a_sum_that_is_another_is_none_of_the_losses(run: Run, after: list[list[float]]) -> None:
    original = two_optimizers(run(), [[1.0], [2.0]], growing=False)
    other = two_optimizers(run(), after, growing=False)
    assert not Gathering.of(original, other).gathered
    verdict = numeric(original, other)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert Kind.BACKWARD_CALLS in {failure.kind for failure in verdict.failures}


def test_a_sum_with_other_gradients_is_none_of_the_losses(run: Run) -> None:
    original = two_optimizers(run(), [[1.0], [2.0]], growing=False)
    other = two_optimizers(run(), [[3.0], []], growing=False)
    first = other.steps[1]
    halved = {
        name: replace(update, grad_norm=(update.grad_norm or 0.0) / 2)
        for name, update in first.parameters.items()
    }
    other = replace(
        other, steps=(other.steps[0], replace(first, parameters=halved), *other.steps[2:])
    )
    assert not Gathering.of(original, other).gathered
    assert numeric(original, other).outcome is Outcome.NOT_EQUIVALENT


def test_a_sum_that_is_another_later_is_a_loss_that_differs(run: Run) -> None:
    original = two_optimizers(run(), [[1.0], [2.0]], growing=False)
    other = two_optimizers(run(), [[3.0], []], growing=False)
    late = replace(other.steps[10], losses=(Loss(1.0, "float32"),))
    other = replace(other, steps=(*other.steps[:10], late, *other.steps[11:]))
    verdict = numeric(original, other)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert Kind.LOSS in {failure.kind for failure in verdict.failures}


@pytest.mark.parametrize("merged_first", [False, True], ids=["becomes one", "becomes two"])
def test_an_optimizer_for_all_may_step_on_the_sum(run: Run, *, merged_first: bool) -> None:
    apart, together = two_optimizers(run(), [[1.0], [2.0]], growing=False), run()
    steps = [replace(step, losses=(Loss(3.0, "float32"),)) for step in together.steps]
    together = replace(together, steps=tuple(steps))
    verdict = numeric(together, apart) if merged_first else numeric(apart, together)
    assert verdict.outcome is Outcome.EQUIVALENT
