from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.onset import rounds_alike
from torchopt_cli.optimizer.execution.observations import Checkpoint, EvalCall, Loss, Observations

Run = Callable[..., Observations]


@pytest.fixture
def original(run: Run) -> Observations:
    return run(steps=8)


def other_loss(original: Observations, at: int) -> Observations:
    """As ``original``, with another loss in the step after ``at`` rounds."""
    steps = list(original.steps)
    steps[at] = replace(steps[at], losses=(Loss(99.0, "float32"),))
    return replace(original, steps=tuple(steps))


@pytest.mark.parametrize(("at", "alike"), [(0, 0), (1, 0), (5, 4)])
def test_the_original_is_perturbed_a_round_before_the_rewrite_parts_from_it(
    original: Observations, at: int, alike: int
) -> None:
    assert rounds_alike(original, [original], other_loss(original, at)) == alike


def test_rounding_from_the_start_on_is_from_the_start_on(run: Run, original: Observations) -> None:
    assert rounds_alike(original, [original], run(steps=8, perturb=1e-6)) == 0


def test_other_evaluation_outputs_and_saves_count(original: Observations) -> None:
    call, save = EvalCall("Net", 4, 2, ()), Checkpoint("a.pt", 3, {})
    known = replace(original, eval_calls=(call,), checkpoints=(save,))
    for changed in (
        {"eval_calls": ()},
        {"eval_calls": (replace(call, module="Other"),)},
    ):
        assert rounds_alike(known, [known], replace(known, **changed)) == 3
    assert rounds_alike(known, [known], replace(known, checkpoints=())) == 2


def test_what_does_not_repeat_itself_or_does_not_differ_parts_at_once(
    original: Observations,
) -> None:
    late = other_loss(original, 5)
    assert rounds_alike(original, [late], other_loss(original, 6)) == 0
    assert rounds_alike(original, [original], original) == 0
