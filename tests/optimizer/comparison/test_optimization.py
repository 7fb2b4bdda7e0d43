from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.optimization import compare_optimization
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.execution.observations import (
    Loss,
    Observations,
    OptimizerInfo,
    ParameterUpdate,
    Scheduler,
    Step,
)

Run = Callable[..., Observations]


def kinds(original: Observations, other: Observations) -> set[Kind]:
    return {finding.kind for finding in compare_optimization(original, other) if finding.fails}


def with_steps(run: Observations, change: Callable[[Step], Step]) -> Observations:
    return replace(run, steps=tuple(change(step) for step in run.steps))


def test_a_run_agrees_with_itself(run: Run) -> None:
    original = run()
    assert compare_optimization(original, original) == []


def test_a_learning_rate_that_changes_is_told_at_its_step(run: Run) -> None:
    (finding,) = compare_optimization(run(), run(mistakes=["rate"]))
    assert (finding.kind, finding.step) == (Kind.LEARNING_RATE, 4)
    assert (finding.original, finding.rewritten) == (0.1, 0.2)


def test_a_learning_rate_held_in_a_float32_tensor_is_the_same(run: Run) -> None:
    original = run()
    other = with_steps(original, lambda s: replace(s, learning_rates=(0.10000000149011612,)))
    assert compare_optimization(original, other) == []


def test_a_parameter_that_is_no_longer_updated(run: Run) -> None:
    found = [f for f in compare_optimization(run(), run(mistakes=["frozen"])) if f.fails]
    assert [(f.kind, f.tensor) for f in found] == [(Kind.FROZEN_PARAMETER, "Net.fc1.weight")]


def test_a_parameter_that_only_the_rewrite_updates(run: Run) -> None:
    found = [f for f in compare_optimization(run(mistakes=["frozen"]), run()) if f.fails]
    assert [(f.kind, f.tensor) for f in found] == [(Kind.STEPPED_PARAMETERS, "Net.fc1.weight")]


def test_a_parameter_moved_by_rounding_alone_may_stand_still(run: Run) -> None:
    original = run(steps=2)

    def moved(size: float) -> Observations:
        return with_steps(
            original,
            lambda s: replace(
                s, parameters={**s.parameters, "Net.k.bias": ParameterUpdate(1e-9, size, 1)}
            ),
        )

    assert kinds(moved(1e-3), moved(0.0)) == set()


@pytest.mark.parametrize(("name", "value"), [("weight_decay", "0"), ("momentum", "0.9")])
def test_other_settings_of_the_optimizer(run: Run, name: str, value: str) -> None:
    original = run(steps=2)
    info = original.optimizers[0]
    changed = replace(info, hyperparameters=({**info.hyperparameters[0], name: value},))
    assert kinds(original, replace(original, optimizers=(changed,))) == {Kind.OPTIMIZER_SETTINGS}


def test_what_other_settings_follow_is_told_first(run: Run) -> None:
    original = run(steps=2)

    def lbfgs(iterations: int) -> Observations:
        settings = {"max_eval": str(iterations * 5 // 4), "max_iter": str(iterations)}
        (info,) = original.optimizers
        return replace(original, optimizers=(replace(info, hyperparameters=(settings,)),))

    first, *_ = compare_optimization(lbfgs(20), lbfgs(4))
    assert first.message == "optimizer 0, parameter group 0: max_iter is 4, not 20"


def test_choosing_another_implementation_is_not_another_setting(run: Run) -> None:
    original = run(steps=2)
    info = original.optimizers[0]
    changed = replace(info, hyperparameters=({**info.hyperparameters[0], "fused": "True"},))
    assert kinds(original, replace(original, optimizers=(changed,))) == set()


def test_another_optimizer_class_fails(run: Run) -> None:
    original = run(steps=2)
    other = replace(original, optimizers=(replace(original.optimizers[0], class_name="Adam"),))
    assert kinds(original, other) == {Kind.OPTIMIZER_SETTINGS}


def test_parameter_groups_flattened_into_one(run: Run) -> None:
    original = run(steps=2)
    info = original.optimizers[0]
    names = info.groups[0]
    split = OptimizerInfo("SGD", (names[:2], names[2:]), info.hyperparameters * 2)
    assert kinds(replace(original, optimizers=(split,)), original) == {Kind.OPTIMIZER_SETTINGS}


def test_a_parameter_that_the_optimizer_no_longer_has(run: Run) -> None:
    original = run(steps=2)
    info = original.optimizers[0]
    fewer = replace(info, groups=(info.groups[0][1:],))
    (finding,) = compare_optimization(original, replace(original, optimizers=(fewer,)))
    assert (finding.kind, finding.tensor) == (Kind.STEPPED_PARAMETERS, info.groups[0][0])


def test_what_no_optimizer_has_is_told_before_what_another_one_has(run: Run) -> None:
    original = run(steps=2)
    info = original.optimizers[0]
    names = sorted(info.groups[0])
    other = replace(
        original,
        optimizers=tuple(
            replace(info, groups=(part,)) for part in ((names[1],), tuple(names[2:-1]))
        ),
    )
    told = [f for f in compare_optimization(original, other) if f.kind is Kind.STEPPED_PARAMETERS]
    assert [(f.tensor, f.message) for f in told[:3]] == [
        (names[0], "optimizer 0 no longer has this parameter"),
        (names[-1], "optimizer 0 no longer has this parameter"),
        (names[2], "optimizer 0 no longer has this parameter, optimizer 1 has it"),
    ]


def test_an_optimizer_that_steps_in_one_version_only(run: Run) -> None:
    original = run(steps=2)
    (info,) = original.optimizers
    both = replace(original, optimizers=(info, replace(info, groups=(("Net.other",),))))
    idle = replace(both, optimizers=(info, replace(info, groups=(), hyperparameters=())))
    assert [f.message for f in compare_optimization(idle, both)] == [
        "optimizer 1 makes steps, and none in the original"
    ]
    assert [f.message for f in compare_optimization(both, idle)] == [
        "optimizer 1 no longer makes a step"
    ]


def test_fewer_and_more_steps(run: Run) -> None:
    long, short = run(steps=5), run(steps=3)
    for original, other in ((long, short), (short, long)):
        found = [f for f in compare_optimization(original, other) if f.fails]
        assert [(f.kind, f.step) for f in found] == [(Kind.OPTIMIZER_STEPS, 4)]


def test_a_step_without_a_backward_call(run: Run) -> None:
    original = run(steps=3)
    other = with_steps(original, lambda s: replace(s, losses=() if s.index == 1 else s.losses))
    (finding,) = compare_optimization(original, other)
    assert (finding.kind, finding.step, finding.fails) == (Kind.BACKWARD_CALLS, 2, True)


def test_losses_added_before_one_backward_call_are_told_and_pass(run: Run) -> None:
    original = run(steps=3)
    halves = with_steps(
        original,
        lambda s: replace(s, losses=(Loss(s.losses[0].value / 2, "float32"),) * 2),
    )
    (finding,) = compare_optimization(halves, original)
    assert finding.kind is Kind.BACKWARD_CALLS
    assert not finding.fails


def test_a_lost_backward_call_fails(run: Run) -> None:
    original = run(steps=3)
    doubled = with_steps(original, lambda s: replace(s, losses=s.losses * 2))
    assert kinds(doubled, original) == {Kind.BACKWARD_CALLS}


def test_a_loss_in_half_precision_and_a_skipped_step_are_told(run: Run) -> None:
    original = run(steps=3)
    half = with_steps(original, lambda s: replace(s, losses=(Loss(s.losses[0].value, "float16"),)))
    skipped = with_steps(original, lambda s: replace(s, skipped=s.index == 0))
    assert [f.kind for f in compare_optimization(original, half)] == [Kind.LOSS_DTYPE]
    assert [f.kind for f in compare_optimization(original, skipped)] == [Kind.SKIPPED_STEPS]
    assert kinds(original, half) | kinds(original, skipped) == set()


def test_no_parameter_is_frozen_where_every_step_was_skipped(run: Run) -> None:
    original, frozen = run(steps=3), run(steps=3, mistakes=["frozen"])
    assert Kind.FROZEN_PARAMETER in kinds(original, frozen)
    skipped = with_steps(frozen, lambda s: replace(s, skipped=True))
    assert kinds(original, skipped) == set()


def test_another_number_of_optimizers(run: Run) -> None:
    original = run(steps=2)
    assert kinds(original, replace(original, optimizers=original.optimizers * 2)) == {
        Kind.OPTIMIZER_STEPS
    }
    first, second = original.steps
    both = replace(
        original,
        optimizers=original.optimizers * 2,
        steps=(first, replace(second, optimizer=1)),
    )
    (finding,) = (
        f for f in compare_optimization(original, both) if "optimizers" in f.message and f.fails
    )
    assert (finding.message, finding.step) == ("the rewrite has 2 optimizers, not 1", 2)


def test_rounding_of_a_coarser_type_hides_larger_gradients(run: Run) -> None:
    original = run(steps=2)
    other = run(steps=2, mistakes=["frozen"])
    small = with_steps(
        original,
        lambda s: replace(
            s,
            parameters={
                **s.parameters,
                "Net.fc1.weight": replace(
                    s.parameters["Net.fc1.weight"], grad_norm=1e-3 * s.grad_norm
                ),
            },
        ),
    )
    assert kinds(small, other) == {Kind.FROZEN_PARAMETER}
    assert [f for f in compare_optimization(small, other, Precision.BFLOAT16) if f.fails] == []


def with_settings(
    run: Observations, *changes: tuple[int, dict[str, str]], **settings: str
) -> Observations:
    (info,) = run.optimizers
    later = tuple((round_, (changed,)) for round_, changed in changes)
    first = {**info.hyperparameters[0], **settings}
    return replace(run, optimizers=(replace(info, hyperparameters=(first,), changes=later),))


@pytest.mark.parametrize(
    ("before", "after"), [("0", "0.0"), ("(0.9, 0.999)", "[0.9, 0.999]"), ("True", "1"), ("x", "x")]
)
def test_a_setting_written_otherwise_is_the_same(run: Run, before: str, after: str) -> None:
    original = run(steps=2)
    one, two = with_settings(original, betas=before), with_settings(original, betas=after)
    assert compare_optimization(one, two) == []


@pytest.mark.parametrize(
    ("before", "after"), [("0.05", "0.04999"), ("(0.9, 0.999)", "(0.999, 0.9)"), ("x", "y")]
)
def test_a_setting_that_no_short_run_would_show(run: Run, before: str, after: str) -> None:
    original = run(steps=2)
    one, two = with_settings(original, betas=before), with_settings(original, betas=after)
    assert kinds(one, two) == {Kind.OPTIMIZER_SETTINGS}


def test_a_setting_that_comes_to_differ_is_told_at_its_step(run: Run) -> None:
    original = run()
    falls = with_settings(
        original, (2, {"momentum": "0.85"}), (5, {"momentum": "0.8"}), momentum="0.9"
    )
    later = with_settings(
        original, (2, {"momentum": "0.85"}), (6, {"momentum": "0.8"}), momentum="0.9"
    )
    (finding,) = compare_optimization(falls, later)
    assert (finding.kind, finding.step) == (Kind.OPTIMIZER_SETTINGS, 6)
    assert finding.message.endswith("momentum is 0.85, not 0.8")
    assert compare_optimization(falls, falls) == []


@pytest.mark.parametrize(
    ("steps", "name", "told"),
    [
        ((0, 0), "momentum", False),
        ((0, 0), "betas", False),
        ((0, 0), "weight_decay", True),
        ((1,), "momentum", True),
    ],
    ids=["its momentum", "its betas", "no scheduler's", "as often before the first step"],
)
def test_a_momentum_that_a_scheduler_set_before_the_first_step_is_explained_by_its_steps(
    run: Run, steps: tuple[int, ...], name: str, told: bool
) -> None:
    before, after = (
        replace(with_settings(run(), **{name: value}), schedulers=(Scheduler("OneCycleLR", at),))
        for value, at in (("0.95", (1,)), ("0.93", steps))
    )
    found = kinds(before, after)
    assert found == ({Kind.OPTIMIZER_SETTINGS} if told else set())
