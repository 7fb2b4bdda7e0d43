"""Parameters in other optimizers, or in other groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.regrouped import regrouped
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import (
    Observations,
    OptimizerInfo,
    Scheduler,
    Step,
)
from torchopt_cli.optimizer.options import Tier

Run = Callable[..., Observations]
Layout = Sequence[Sequence[Sequence[str]]]

FIRST = ["Net.fc1.weight", "Net.fc1.bias"]
SECOND = ["Net.fc2.weight", "Net.fc2.bias"]
TOGETHER = [[FIRST + SECOND]]
APART = [[FIRST], [SECOND]]


def laid_out(run: Observations, layout: Layout) -> Observations:
    """``run``, of one optimizer with one group, as that of optimizers with the groups of ``layout``, which step one after the other."""
    (info,) = run.optimizers
    optimizers = [
        replace(
            info, groups=tuple(map(tuple, one)), hyperparameters=info.hyperparameters * len(one)
        )
        for one in layout
    ]
    steps = [part for step in run.steps for part in parts(step, optimizers)]
    numbered = tuple(replace(step, index=index) for index, step in enumerate(steps))
    return replace(run, optimizers=tuple(optimizers), steps=numbered)


def parts(step: Step, optimizers: Sequence[OptimizerInfo]) -> list[Step]:
    return [
        replace(
            step,
            optimizer=number,
            losses=() if number else step.losses,
            learning_rates=step.learning_rates * len(info.groups),
            parameters={n: step.parameters[n] for group in info.groups for n in group},
        )
        for number, info in enumerate(optimizers)
    ]


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
        (TOGETHER, APART),
        (APART, TOGETHER),
        ([[FIRST, SECOND]], [[SECOND, FIRST]]),
        ([[FIRST, SECOND]], TOGETHER),
        (APART, [[SECOND], [FIRST]]),
        (TOGETHER, [[SECOND + FIRST]]),
    ],
    ids=["split", "merged", "other order", "one group", "built in another order", "in a group"],
)
def test_which_optimizer_has_a_parameter_is_the_scripts_business(
    run: Run, before: Layout, after: Layout
) -> None:
    verdict = judged(laid_out(run(), before), laid_out(run(), after))
    assert verdict.outcome is Outcome.EQUIVALENT
    assert [f.kind for f in verdict.findings] == [Kind.OPTIMIZER_SETTINGS]
    assert "in other optimizers or groups" in verdict.findings[0].message


def test_what_is_the_same_is_left_as_it_is(run: Run) -> None:
    original, other = laid_out(run(), APART), laid_out(run(), APART)
    assert regrouped(original, other) is other


def with_setting(run: Observations, optimizer: int, group: int, **changed: str) -> Observations:
    infos = list(run.optimizers)
    settings = list(infos[optimizer].hyperparameters)
    settings[group] = {**settings[group], **changed}
    infos[optimizer] = replace(infos[optimizer], hyperparameters=tuple(settings))
    return replace(run, optimizers=tuple(infos))


def test_a_setting_lost_on_the_way_is_told_of_the_originals_group(run: Run) -> None:
    original = with_setting(laid_out(run(), APART), 1, 0, weight_decay="0.1")
    other = laid_out(run(), TOGETHER)
    (failure,) = judged(original, other).failures
    assert failure.kind is Kind.OPTIMIZER_SETTINGS
    assert failure.message.startswith("optimizer 1, parameter group 0: weight_decay is")


def test_a_group_whose_parameters_part_ways_is_not_put_together(run: Run) -> None:
    original, other = laid_out(run(), TOGETHER), laid_out(run(), [[FIRST, SECOND]])
    other = with_setting(other, 0, 1, weight_decay="0.1")
    assert regrouped(original, other) is other
    assert judged(original, other).outcome is Outcome.NOT_EQUIVALENT


def test_other_rates_later_are_not_put_together(run: Run) -> None:
    original, other = laid_out(run(), TOGETHER), laid_out(run(), APART)
    last = replace(other.steps[-1], learning_rates=(0.5,))
    other = replace(other, steps=(*other.steps[:-1], last))
    assert regrouped(original, other) is other


def test_a_backward_call_between_two_steps_keeps_them_apart(run: Run) -> None:
    original, other = laid_out(run(), TOGETHER), laid_out(run(), APART)
    steps = [replace(step, losses=original.steps[0].losses) for step in other.steps]
    other = replace(other, steps=tuple(steps))
    assert regrouped(original, other) is other


def test_an_optimizer_that_steps_less_often_is_seen(run: Run) -> None:
    original, other = laid_out(run(), TOGETHER), laid_out(run(), APART)
    other = replace(other, steps=other.steps[:-1])
    assert judged(original, other).outcome is Outcome.NOT_EQUIVALENT


def test_the_order_of_steps_on_the_same_gradients(run: Run) -> None:
    original = laid_out(run(), APART)
    swapped = [
        replace(part, index=index, losses=step.losses if part.optimizer else ())
        for step in run().steps
        for part in reversed(parts(step, original.optimizers))
        for index in [2 * step.index + 1 - part.optimizer]
    ]
    other = replace(original, steps=tuple(swapped))
    verdict = judged(original, other)
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = [f.message for f in verdict.findings if f.kind is Kind.OPTIMIZER_STEPS]
    assert told == "optimizers step in another order, on the same gradients"
    between = tuple(replace(step, losses=run().steps[0].losses) for step in swapped)
    assert judged(original, replace(other, steps=between)).outcome is Outcome.NOT_EQUIVALENT


@pytest.mark.parametrize("turned", [False, True])
def test_schedulers_that_are_alike_may_be_one_for_each_optimizer(run: Run, turned: bool) -> None:
    one = Scheduler("StepLR", (2, 4), (4,), {"step_size": "2"})
    together = replace(laid_out(run(), TOGETHER), schedulers=(one,))
    apart = replace(laid_out(run(), APART), schedulers=(one, one))
    runs = (apart, together) if turned else (together, apart)
    assert judged(*runs).outcome is Outcome.EQUIVALENT
    late = replace(one, steps=(2, 5))
    for schedulers in ((one, late), (one, one, one)):
        runs = (together, replace(apart, schedulers=schedulers))
        failures = judged(*(reversed(runs) if turned else runs)).failures
        assert failures[0].kind is Kind.SCHEDULER_STEPS


def test_a_second_optimizer_whose_scheduler_is_forgotten_is_found(run: Run) -> None:
    one = Scheduler("StepLR", (2, 4), (), {"step_size": "9"})
    original = replace(laid_out(run(), APART), schedulers=(one, one))
    other = replace(laid_out(run(), APART), schedulers=(one,))
    assert judged(original, other).failures[0].kind is Kind.SCHEDULER_STEPS
