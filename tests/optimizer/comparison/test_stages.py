"""Which runs a verdict takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import (
    Clip,
    EvalCall,
    Loss,
    Observations,
    Status,
    TrainingCalls,
)
from torchopt_cli.optimizer.execution.runner import Perturbation
from torchopt_cli.optimizer.options import Tier

from .conftest import bfloat16

Run = Callable[..., Observations]

PRINTED = "epoch 0 mean loss 1.250000"


class _Laboratory:
    """Observes the original, whose printed loss rounding would take far if it were asked for perturbed runs."""

    def __init__(self, original: Observations, perturbed: Iterator[Observations]) -> None:
        self.asked: list[str] = []
        self._original = original
        self._perturbed = perturbed

    def __call__(self, description: str, *, perturb: object = None, **_: object) -> Observations:
        self.asked.append(description)
        return next(self._perturbed) if perturb else self._original


@pytest.fixture
def original(run: Run) -> Observations:
    return replace(run(), stdout=PRINTED)


@pytest.fixture
def laboratory(original: Observations, run: Run) -> _Laboratory:
    near = (
        replace(run(perturb=2**-7, seed=seed), stdout=PRINTED.replace("1.25", f"1.{seed}5"))
        for seed in range(3)
    )
    return _Laboratory(original, near)


def _judged(
    original: Observations, other: Observations, laboratory: Callable[..., Observations]
) -> Verdict:
    return judge_in_stages(
        original, other, laboratory, tier=None, precision=None, perturbed_runs=3
    ).verdict


def test_what_is_told_of_equal_runs_is_judged_without_perturbed_training(
    original: Observations, laboratory: _Laboratory
) -> None:
    rounded = replace(original, stdout=PRINTED.replace("1.250000", "1.250009"))
    verdict = _judged(original, rounded, laboratory)
    assert (verdict.outcome, verdict.tier) == (Outcome.EQUIVALENT, Tier.NUMERIC)
    assert "bit for bit the same over 8 steps, and what is printed" in verdict.reason
    wrong = replace(original, stdout=PRINTED.replace("1.250000", "1.260000"))
    verdict = _judged(original, wrong, laboratory)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert [finding.kind for finding in verdict.failures] == [Kind.STDOUT]
    digits = ["original, with more digits", "rewritten, with more digits"]
    assert laboratory.asked == ["original, again", *digits, "original, again"]


def test_the_name_of_a_file_is_told_of_equal_runs_as_well(original: Observations, run: Run) -> None:
    """What perturbed training would make of an accuracy in the name excuses no other number there."""

    def saving(told: str) -> Observations:
        saves = tuple(replace(one, path=f"net_{told}.pt") for one in original.checkpoints)
        return replace(original, checkpoints=saves)

    near = (saving(f"0.5{seed}") for seed in range(3))
    laboratory = _Laboratory(saving("0.50"), near)
    verdict = _judged(saving("0.50"), saving("17"), laboratory)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.failures[0].kind is Kind.CHECKPOINT_FILES
    assert laboratory.asked == ["original, again"]


def test_what_is_told_in_full_precision_of_equal_runs_is_not_excused_by_perturbed_training(
    original: Observations, laboratory: _Laboratory, run: Run
) -> None:
    coarse = replace(run(rounding=bfloat16), compute_dtypes=("bfloat16",), stdout=PRINTED)
    wrong = replace(original, stdout=PRINTED.replace("1.25", "1.05"))

    def observe(description: str, *, original: bool, **how: object) -> Observations:
        seen = laboratory(description, **how)
        return seen if original else wrong

    verdict = _judged(original, coarse, observe)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.reason.startswith("with bfloat16 switched off, too: stdout")
    assert laboratory.asked == ["original, again", "rewritten in full precision"]


@pytest.mark.parametrize("which", ["rewritten", "original"])
def test_a_run_that_fails_in_full_precision_alone_decides_nothing(
    original: Observations, run: Run, which: str
) -> None:
    """A kernel that there is for half precision only."""
    half = replace(run(rounding=bfloat16), compute_dtypes=("bfloat16",))
    first = replace(original, compute_dtypes=("bfloat16",))
    failed = replace(original, status=Status.FAILED, exit_code=1)
    near = (run(perturb=2**-8, seed=seed) for seed in range(8))

    def observe(
        description: str, *, perturb: object = None, full_precision: bool = False, **_: object
    ) -> Observations:
        if full_precision:
            return failed if description.startswith(which) else original
        return next(near) if perturb else first

    verdict = _judged(first, half, observe)
    assert verdict.outcome is Outcome.EQUIVALENT
    assert verdict.reason.startswith("within bfloat16 rounding")


@pytest.mark.parametrize("by_autocast", [True, False])
def test_rounding_of_its_own_is_excused_where_autocast_makes_the_same_bits(
    original: Observations, run: Run, by_autocast: bool
) -> None:
    half = replace(run(rounding=bfloat16), compute_dtypes=("bfloat16",))
    rounded = replace(run(perturb=2**-8, seed=20), rounds_by_itself=True)
    near = (run(perturb=2**-8, seed=seed) for seed in range(8))
    exact = (run(perturb=2**-23, seed=seed) for seed in range(8))

    def observe(
        description: str, *, original: bool, perturb: Perturbation | None = None, **how: object
    ) -> Observations:
        if perturb:
            return next(near if perturb.dtype == "bfloat16" else exact)
        if original or (how.get("unrounded") and how.get("full_precision")):
            return run()
        return half if how.get("unrounded") and by_autocast else rounded

    verdict = _judged(original, half, observe)
    expected = Outcome.EQUIVALENT if by_autocast else Outcome.NOT_EQUIVALENT
    assert verdict.outcome is expected
    told = "within bfloat16 rounding" if by_autocast else "with bfloat16 switched off, too"
    assert verdict.reason.startswith(told)


def test_equal_runs_do_not_show_what_another_limit_of_gradients_would_do(
    original: Observations, laboratory: _Laboratory
) -> None:
    clipped = replace(original, clips=(Clip("norm", 0.5, 2.0, 0, False),))
    verdict = _judged(clipped, original, laboratory)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "clip gradients" in verdict.reason


def test_where_evaluation_differs_the_spread_of_perturbed_runs_holds(
    original: Observations, laboratory: _Laboratory
) -> None:
    *calls, last = original.eval_calls
    outputs = tuple(replace(output, checksum=output.checksum + 1) for output in last.outputs)
    evaluated: tuple[EvalCall, ...] = (*calls, replace(last, outputs=outputs))
    other = replace(original, eval_calls=evaluated, stdout=PRINTED.replace("1.250000", "1.260000"))
    assert _judged(original, other, laboratory).outcome is Outcome.EQUIVALENT
    assert len(laboratory.asked) == 4


def test_a_type_that_only_one_version_computes_in_was_used_somewhere(
    original: Observations, laboratory: _Laboratory
) -> None:
    other = replace(
        original,
        compute_dtypes=("bfloat16",),
        stdout=PRINTED.replace("1.250000", "1.260000"),
    )
    _judged(original, other, laboratory)
    assert "rewritten in full precision" in laboratory.asked


def test_where_the_original_does_not_repeat_itself_its_spread_holds(
    original: Observations, run: Run
) -> None:
    """Nothing failed, and nothing was seen to be the same but for rounding either."""
    coarse = run(rounding=lambda values: (values * (1 + 0.05 * np.sin(1e3 * values))).astype("f"))
    again = iter([run(perturb=2**-3, seed=9), run(perturb=2**-3, seed=10)])
    near = (run(perturb=2**-3, seed=seed) for seed in range(3))

    def observe(_: str, *, perturb: object = None, **__: object) -> Observations:
        return next(near) if perturb else next(again)

    other = replace(coarse, stdout=PRINTED)
    found = judge_in_stages(
        original, other, observe, tier=None, precision=None, perturbed_runs=3
    ).verdict
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reason.startswith("rounding alone takes the first step of optimizer 0 so far")


def test_the_original_is_perturbed_no_earlier_than_the_rewrite_parts_from_it(
    original: Observations,
) -> None:
    for step, after in ((5, 4), (0, 0)):
        steps = list(original.steps)
        loss = Loss(steps[step].losses[0].value * 1.5, "float32")
        steps[step] = replace(steps[step], losses=(loss,))
        asked = _perturbations(original, replace(original, steps=tuple(steps)))
        assert [(one.after, one.evaluations) for one in asked] == [(after, False)] * 2


def test_of_a_rewrite_that_trains_the_same_bit_for_bit_evaluations_alone_are_perturbed(
    original: Observations,
) -> None:
    *calls, last = original.eval_calls
    outputs = tuple(replace(output, checksum=output.checksum + 1) for output in last.outputs)
    evaluated: tuple[EvalCall, ...] = (*calls, replace(last, outputs=outputs))
    asked = _perturbations(original, replace(original, eval_calls=evaluated))
    assert [(one.evaluations, one.after) for one in asked] == [(True, len(calls))] * 2


def _perturbations(original: Observations, other: Observations) -> list[Perturbation]:
    """With which the original is run to judge ``other``."""
    asked: list[Perturbation] = []

    def observe(
        description: str, *, perturb: Perturbation | None = None, **_: object
    ) -> Observations:
        asked.extend([perturb] if perturb else [])
        return original

    judge_in_stages(original, other, observe, tier=None, precision=None, perturbed_runs=2)
    return asked


def _with_loss(original: Observations, off: float) -> Observations:
    """``original`` with the loss of the sixth step off by so much."""
    steps = list(original.steps)
    loss = Loss(steps[5].losses[0].value + off, "float32")
    steps[5] = replace(steps[5], losses=(loss,))
    return replace(original, steps=tuple(steps))


LITTLE = [
    (5e-5, 1e-5, Outcome.EQUIVALENT, 0),
    # Beyond four times what the first neighbours happen to be off by, and within that of a further one.
    (1.2e-4, 4e-5, Outcome.EQUIVALENT, 1),
    (1.2e-4, 1e-5, Outcome.NOT_EQUIVALENT, 5),
    # Further than any luck explains.
    (1e-2, 4e-5, Outcome.NOT_EQUIVALENT, 0),
]


@pytest.mark.parametrize(("off", "further", "outcome", "more"), LITTLE)
def test_what_fails_by_a_little_is_judged_with_more_neighbours(
    original: Observations, off: float, further: float, outcome: Outcome, more: int
) -> None:
    perturbed = iter([1e-5, 1e-5, 1e-5, further, *[1e-5] * 4])
    laboratory = _Laboratory(original, (_with_loss(original, one) for one in perturbed))
    assert _judged(original, _with_loss(original, off), laboratory).outcome is outcome
    assert sum("perturbed" in asked for asked in laboratory.asked) == 3 + more


@pytest.mark.parametrize(("off", "further", "outcome", "more"), LITTLE)
def test_an_original_that_does_not_repeat_itself_is_repeated_for_that(
    original: Observations, off: float, further: float, outcome: Outcome, more: int
) -> None:
    again = [_with_loss(original, one) for one in (1e-5, 1e-5, further, *[1e-5] * 4)]
    asked: list[str] = []

    def observe(description: str, **_: object) -> Observations:
        asked.append(description)
        return again[len(asked) - 1]

    other = _with_loss(original, off)
    found = judge_in_stages(
        original, other, observe, tier=Tier.EXACT, precision=None, perturbed_runs=3
    )
    assert found.verdict.outcome is outcome
    assert len(asked) == 2 + more


@pytest.mark.parametrize(
    ("lent", "outcome"), [("0.6250", Outcome.EQUIVALENT), ("0.6562", Outcome.NOT_EQUIVALENT)]
)
def test_what_jumps_with_a_rounding_is_told_by_the_original_evaluated_with_the_weights_of_the_rewrite(
    original: Observations, lent: str, outcome: Outcome
) -> None:
    """No perturbed run happens to have the one sample on the other side that the rewrite has there."""
    told = {"rewritten": "acc 0.6250", "original": "acc 0.6562"}
    original = replace(original, stdout=told["original"])
    other = replace(_with_loss(original, 1e-5), stdout=told["rewritten"])
    asked: list[str] = []

    def observe(
        description: str,
        *,
        original: bool,
        perturb: object = None,
        evaluated_with: Path | None = None,
        **_: object,
    ) -> Observations:
        asked.append(description)
        if not original:
            return other
        first = replace(other, stdout=told["original"])
        if evaluated_with is not None:
            assert evaluated_with == other.folder
            return replace(ours, stdout=f"acc {lent}")
        return _with_loss(first, 1e-5) if perturb else ours

    ours = original
    found = judge_in_stages(original, other, observe, tier=None, precision=None, perturbed_runs=2)
    assert found.verdict.outcome is outcome
    assert asked[-2:] == ["rewritten, its weights kept", "original, evaluated with these weights"]


@pytest.mark.parametrize(
    ("loss", "reason"), [(1.0001, "evaluation-mode at step 5"), (1.01, "loss at step 1")]
)
def test_what_rounding_may_have_done_is_no_reason(
    original: Observations, laboratory: _Laboratory, loss: float, reason: str
) -> None:
    """Under bfloat16 every loss is another from the first step on; that the model is evaluated in training mode is sure."""

    def reduced(factor: float, **changed: object) -> Observations:
        steps = [
            replace(
                step, losses=tuple(replace(one, value=factor * one.value) for one in step.losses)
            )
            for step in original.steps
        ]
        return replace(original, steps=tuple(steps), **changed)  # pyright: ignore[reportArgumentType]

    called = (TrainingCalls("Net", 4, 6, 6),)
    before = replace(original, eval_calls=(EvalCall("Net", 4, 6, ()),))
    other = reduced(loss, eval_calls=(), training_calls=called, eval_file=None)
    verdict = judge_in_stages(
        before, other, laboratory, tier=None, precision=Precision.TFLOAT32, perturbed_runs=3
    ).verdict
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.reason.startswith(reason)
    assert {f.kind for f in verdict.failures} >= {Kind.LOSS, Kind.EVALUATION_MODE}
