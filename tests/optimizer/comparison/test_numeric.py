from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from torchopt_cli.optimizer.comparison.deviation import deviations
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.numeric import (
    NumericComparison,
    compare_numbers,
    rounding_only,
)
from torchopt_cli.optimizer.comparison.tolerance import Precision, perturbation_scale
from torchopt_cli.optimizer.comparison.vectors import Quantity, judge
from torchopt_cli.optimizer.execution.observations import Loss, Observations

Run = Callable[..., Observations]
Rounding = Callable[[np.ndarray], np.ndarray]


def neighbours(run: Run, precision: Precision, **recipe: object) -> list[Observations]:
    size = perturbation_scale(precision) * 2 * precision.unit_roundoff
    return [run(perturb=size, seed=seed, **recipe) for seed in range(3)]


def judged(
    run: Run, precision: Precision, original: dict[str, object], other: dict[str, object]
) -> NumericComparison:
    return compare_numbers(
        run(**original), run(**other), neighbours(run, precision, **original), precision
    )


@pytest.mark.parametrize("adam", [False, True])
def test_bfloat16_rounding_passes(run: Run, rounding: Rounding, adam: bool) -> None:
    found = judged(run, Precision.BFLOAT16, {"adam": adam}, {"adam": adam, "rounding": rounding})
    assert found.findings == ()
    first = found.vectors[0]
    assert first.telling
    assert first.distance < first.allowed / 2


@pytest.mark.parametrize("adam", [False, True])
def test_float32_noise_passes_and_bfloat16_noise_does_not_pass_for_it(
    run: Run, rounding: Rounding, adam: bool
) -> None:
    def noise(values: np.ndarray) -> np.ndarray:
        return (values * (1 + 4e-7 * np.sin(1e3 * values))).astype(np.float32)

    quiet = judged(run, Precision.FLOAT32, {"adam": adam}, {"adam": adam, "rounding": noise})
    loud = judged(run, Precision.FLOAT32, {"adam": adam}, {"adam": adam, "rounding": rounding})
    assert quiet.findings == ()
    assert Kind.GRADIENT in {f.kind for f in loud.findings}


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16])
@pytest.mark.parametrize(
    ("mistake", "kind"),
    [
        ("labels", Kind.GRADIENT),
        ("other batches", Kind.GRADIENT),
        ("sum", Kind.LOSS),
        ("no zero_grad", Kind.GRADIENT),
        ("frozen", Kind.UPDATE),
        ("NaN", Kind.NON_FINITE),
    ],
)
def test_mistakes_are_seen_through_the_rounding(
    run: Run, rounding: Rounding, mistake: str, kind: Kind, precision: Precision, adam: bool
) -> None:
    recipe: dict[str, object] = {"adam": adam, "mistakes": [mistake]}
    if precision is Precision.BFLOAT16:
        recipe["rounding"] = rounding
    found = judged(run, precision, {"adam": adam}, recipe)
    assert kind in {f.kind for f in found.findings}


def test_gradients_a_tenth_too_short_are_seen_under_bfloat16(run: Run, rounding: Rounding) -> None:
    found = judged(run, Precision.BFLOAT16, {}, {"rounding": rounding, "mistakes": ["clipped"]})
    assert Kind.GRADIENT in {f.kind for f in found.findings}


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16])
def test_initial_values_may_be_another_rounding_but_not_of_a_coarser_type(
    run: Run, precision: Precision
) -> None:
    rounded = judged(run, precision, {}, {"perturb": 1e-5})
    assert rounded.findings == ()
    other = judged(run, precision, {}, {"perturb": 1e-4})
    assert Kind.INITIAL_PARAMETERS in {f.kind for f in other.findings}


def test_running_statistics_count(run: Run) -> None:
    original, other = run(), run()
    tensors = other.buffers()
    tensors["Net.bn.running_mean"] *= np.float32(2)
    save_file(tensors, other.folder / "buffers")
    found = compare_numbers(
        original, other, neighbours(run, Precision.BFLOAT16), Precision.BFLOAT16
    )
    assert [(f.kind, f.tensor) for f in found.findings] == [(Kind.BUFFER, "Net.bn.running_mean")]


def test_a_counter_must_be_equal(run: Run) -> None:
    original, other = run(), run()
    tensors = other.buffers()
    tensors["Net.bn.num_batches_tracked"] += 1
    save_file(tensors, other.folder / "buffers")
    found = compare_numbers(
        original, other, neighbours(run, Precision.BFLOAT16), Precision.BFLOAT16
    )
    assert [(f.kind, f.tensor) for f in found.findings] == [
        (Kind.BUFFER, "Net.bn.num_batches_tracked")
    ]


def test_evaluation_outputs_count(run: Run) -> None:
    original, other = run(), run()
    output = other.eval_outputs()["0.0"]
    save_file({"0.0": output[:, ::-1].copy()}, other.folder / "eval")
    found = compare_numbers(
        original, other, neighbours(run, Precision.BFLOAT16), Precision.BFLOAT16
    )
    assert [f.kind for f in found.findings] == [Kind.EVALUATION_OUTPUT]


def test_summaries_of_evaluation_outputs_count(run: Run) -> None:
    original = run()
    call = original.eval_calls[0]
    shifted = replace(call, outputs=(replace(call.outputs[0], mean=call.outputs[0].mean + 5),))
    other = replace(original, eval_calls=(shifted,))
    found = compare_numbers(
        original, other, neighbours(run, Precision.BFLOAT16), Precision.BFLOAT16
    )
    assert [f.kind for f in found.findings] == [Kind.EVALUATION_OUTPUT]


def test_a_step_skipped_by_the_gradient_scaler_leaves_the_rewrite_behind_and_passes(
    run: Run,
) -> None:
    original = run()
    first = original.steps[0]
    still = {name: replace(u, update_norm=0.0) for name, u in first.parameters.items()}
    other = replace(
        original, steps=(replace(first, skipped=True, parameters=still), *original.steps[1:])
    )
    assert (
        compare_numbers(
            original, other, neighbours(run, Precision.FLOAT16), Precision.FLOAT16
        ).findings
        == ()
    )


def test_each_kind_is_told_once_where_it_is_first_seen(run: Run) -> None:
    found = judged(run, Precision.FLOAT32, {}, {"mistakes": ["labels"]}).findings
    assert len({f.kind for f in found}) == len(found)
    assert {f.step for f in found if f.kind in (Kind.LOSS, Kind.GRADIENT)} == {1}


def test_adam_may_step_the_other_way_where_rounding_decides_the_sign(run: Run) -> None:
    """One element of a small gradient flips: a full learning rate the other way, in no neighbour."""
    original, other = run(adam=True), run(adam=True)
    gradients = original.gradients()
    flat = gradients["Net.fc2.bias"]
    tiny = int(np.abs(flat).argmin())
    flat[tiny] = 1e-6
    save_file(gradients, original.folder / "gradients")
    save_file(gradients, other.folder / "gradients")
    for snapshot in other.snapshots[1:]:
        assert snapshot.file is not None
        tensors = other.tensors(snapshot)
        assert tensors is not None
        tensors["Net.fc2.bias"][tiny] += np.float32(0.02)
        save_file(tensors, other.folder / snapshot.file)
    near = neighbours(run, Precision.BFLOAT16, adam=True)
    found = compare_numbers(original, other, near, Precision.BFLOAT16)
    assert found.findings == ()
    flat[tiny] = 1.0
    save_file(gradients, original.folder / "gradients")
    save_file(gradients, other.folder / "gradients")
    found = compare_numbers(original, other, near[:0], Precision.BFLOAT16)
    assert Kind.UPDATE in {f.kind for f in found.findings}


def in_two_phases(one: Observations) -> Observations:
    """Another optimizer trains the last layer, from the fourth step on."""
    (info,) = one.optimizers
    names = info.groups[0]
    parts = (tuple(n for n in names if last == (".fc2." in n)) for last in (False, True))
    optimizers = tuple(replace(info, groups=(part,)) for part in parts)
    steps = tuple(replace(step, optimizer=int(step.round >= 3)) for step in one.steps)
    return replace(one, optimizers=optimizers, steps=steps)


def test_the_first_gradient_of_a_later_optimizer_is_of_its_own_first_step(run: Run) -> None:
    """Of another fold, say: it was taken for the first step of all, and so for the reason of every verdict."""
    original, other = in_two_phases(run()), in_two_phases(run())
    gradients = other.gradients()
    gradients["Net.fc2.weight"] = gradients["Net.fc2.weight"] * np.float32(1.1)
    save_file(gradients, other.folder / "gradients")
    near = [in_two_phases(one) for one in neighbours(run, Precision.FLOAT32)]
    found = compare_numbers(original, other, near, Precision.FLOAT32)
    (finding,) = found.findings
    assert (finding.kind, finding.step) == (Kind.GRADIENT, 4)
    rounds = {v.group: v.round for v in found.vectors if "gradient" in v.what}
    assert rounds == {"optimizer 0": 1, "optimizer 1": 4}


@pytest.mark.parametrize(
    ("factor", "told"),
    [(1.01, "1 % longer (allowed 0.0014 %)"), (0.99, "1 % shorter"), (3.0, "3 times as long")],
)
def test_lengths_are_told_as_people_would(factor: float, told: str) -> None:
    before = {"w": np.linspace(1, 2, 8)}
    quantity = Quantity(Kind.BUFFER, "buffers", lambda _: "all")
    after = {"w": before["w"] * factor}
    (finding,), _ = judge(quantity, deviations(before, after), (), Precision.FLOAT32)
    assert told in finding.message
    assert "cosine" not in finding.message


def test_another_direction_is_told_by_its_cosine() -> None:
    before, after = {"w": np.array([1.0, 0.0])}, {"w": np.array([0.8, 0.6])}
    quantity = Quantity(Kind.BUFFER, "buffers", lambda _: "all")
    (finding,), _ = judge(quantity, deviations(before, after), (), Precision.FLOAT32)
    assert finding.message.startswith("buffers of all: relative distance 0.63")
    assert "cosine 0.800" in finding.message


def test_what_is_zero_in_both_runs_has_no_figures() -> None:
    """Those of an actor that steps later than its critics: "cosine 1.00000" would count as having shown something."""
    zeros, moved = {"w": np.zeros(3)}, {"w": np.array([0.0, 1.0, 0.0])}
    quantity = Quantity(Kind.UPDATE, "movement", lambda _: "optimizer 1")
    assert judge(quantity, deviations(zeros, zeros), (), Precision.FLOAT32) == ([], [])
    (finding,), (figures,) = judge(quantity, deviations(zeros, moved), (), Precision.FLOAT32)
    assert (finding.kind, figures.group) == (Kind.UPDATE, "optimizer 1")


def test_a_buffer_that_is_gone_is_told(run: Run) -> None:
    """An attention mask that the kernel has built in is no mistake; a lost running average shows in what it is for."""
    original, other = run(), replace(run(), buffers_file=None)
    near = neighbours(run, Precision.FLOAT32)
    (told,) = compare_numbers(original, other, near, Precision.FLOAT32).findings
    assert (told.kind, told.fails) == (Kind.BUFFER, False)
    assert "not among the models' buffers" in told.message


def test_a_buffer_of_the_first_step_is_held_against_what_rounding_does_by_then(run: Run) -> None:
    """A biased variance in BatchNorm's buffer: at the end, training is scattered by more than that."""

    def keeping(one: Observations, variance: float) -> Observations:
        save_file({"Net.bn.running_var": np.full(4, variance)}, one.folder / "first")
        return replace(one, first_buffers_file="first")

    original = keeping(run(), 1.0)
    near = [keeping(one, 1.0 + 2e-6) for one in neighbours(run, Precision.FLOAT32)]
    rounded, biased = keeping(run(), 1.0 - 3e-6), keeping(run(), 0.999)
    assert not compare_numbers(original, rounded, near, Precision.FLOAT32).findings
    (found,) = compare_numbers(original, biased, near, Precision.FLOAT32).findings
    assert (found.kind, found.fails, found.step) == (Kind.BUFFER, True, 2)
    assert "running_var" in found.message


BIAS = "Net.fc1.bias"


def with_bias(one: Observations, grad_norm: Callable[[int], float], update: float) -> Observations:
    """``one``, whose bias has gradients of that norm and moves so far in every step."""
    steps = tuple(
        replace(
            step,
            parameters={
                **step.parameters,
                BIAS: replace(
                    step.parameters[BIAS],
                    grad_norm=grad_norm(step.index) * step.grad_norm,
                    update_norm=update,
                ),
            },
        )
        for step in one.steps
    )
    return replace(one, steps=steps)


def test_steps_of_gradients_that_are_nothing_but_rounding_may_have_any_length(run: Run) -> None:
    """As RMSprop's have, with momentum."""
    original, other = (with_bias(run(), lambda _: 1e-7, length) for length in (0.02, 0.03))
    near = [with_bias(one, lambda _: 1e-7, 0.02) for one in neighbours(run, Precision.FLOAT32)]
    assert compare_numbers(original, other, near, Precision.FLOAT32).findings == ()
    assert rounding_only(original, Precision.FLOAT32) == {BIAS}


def test_what_has_no_gradient_in_the_first_step_alone_is_trained(run: Run) -> None:
    """The first factor of a product whose second starts from zeros."""

    def trained(one: Observations, update: float = 0.02) -> Observations:
        return with_bias(one, lambda step: float(step > 0), update)

    original, other = trained(run()), trained(run(), 0.03)
    near = [trained(one) for one in neighbours(run, Precision.FLOAT32)]
    found = compare_numbers(original, other, near, Precision.FLOAT32).findings
    assert Kind.UPDATE in {finding.kind for finding in found}
    assert rounding_only(original, Precision.FLOAT32) == frozenset()


def test_what_is_nothing_but_rounding_in_the_first_step_may_move_there_or_not(run: Run) -> None:
    """The rotation of what is round: its gradient is zero here and 1e-10 there, of which Adam makes a full step."""
    half = np.arange(16) < 8

    def turned(one: Observations, moved: np.ndarray, first: float = 1e-10) -> Observations:
        one = with_bias(one, lambda step: first if step == 0 else 0.3, 0.04)
        gradients = one.gradients()
        gradients[BIAS] = np.where(half, 0.0, first * one.steps[0].grad_norm).astype(np.float32)
        save_file(gradients, one.folder / "gradients")
        update = replace(one.steps[0].parameters[BIAS], update_norm=0.01 * moved.sum() ** 0.5)
        step = replace(one.steps[0], parameters={**one.steps[0].parameters, BIAS: update})
        tensors = one.tensors(one.snapshots[1])
        start = one.tensors(one.snapshots[0])
        assert tensors is not None
        assert start is not None
        assert one.snapshots[1].file is not None
        tensors[BIAS] = start[BIAS] - np.where(moved, 0.01, 0.0).astype(np.float32)
        save_file(tensors, one.folder / one.snapshots[1].file)
        return replace(one, steps=(step, *one.steps[1:]), snapshots=one.snapshots[:2])

    def told(first: float) -> set[Kind]:
        original = turned(run(adam=True), ~half, first)
        other = turned(run(adam=True), half & (np.arange(16) < 3), first)
        near = [turned(one, ~half, first) for one in neighbours(run, Precision.FLOAT32, adam=True)]
        return {f.kind for f in compare_numbers(original, other, near, Precision.FLOAT32).findings}

    assert told(1e-10) == set()
    assert Kind.UPDATE in told(1e-2)


def test_the_first_loss_of_a_closure_is_compared_by_itself(run: Run) -> None:
    """Those behind it are at weights that rounding has moved far: their sum hides much."""

    def with_closure(one: Observations, first: float, far: float) -> Observations:
        losses = (Loss(first, "float32"), Loss(5.0 + far, "float32"))
        steps = [replace(step, closure=True, losses=losses) for step in one.steps]
        return replace(one, steps=tuple(steps))

    original = with_closure(run(), 2.0, 0.0)
    near = [with_closure(run(), 2.0, far) for far in (0.1, -0.1)]
    for first, wrong in ((2.00001, False), (2.001, True)):
        other = with_closure(run(), first, 0.05)
        found = compare_numbers(original, other, near, Precision.FLOAT32).findings
        messages = [finding.message for finding in found if finding.kind is Kind.LOSS]
        assert [message[:26] for message in messages] == ["first loss of the closure "] * wrong


def test_of_a_loss_whose_terms_cancel_what_its_weights_make_of_it_is_the_scale(run: Run) -> None:
    """Advantages have a mean of zero: a policy held against itself has a loss of nothing but rounding, whatever it weighs."""

    def cancelling(one: Observations, left: float) -> Observations:
        steps = [
            replace(step, losses=(Loss(left, "float32"),), weight_terms=0.1) for step in one.steps
        ]
        return replace(one, steps=tuple(steps))

    original = cancelling(run(), 5e-8)
    near = [cancelling(one, 5e-8) for one in neighbours(run, Precision.FLOAT32)]
    for left, wrong in ((-3e-8, False), (3e-6, True)):
        found = compare_numbers(original, cancelling(run(), left), near, Precision.FLOAT32).findings
        assert [finding.kind for finding in found] == [Kind.LOSS] * wrong
