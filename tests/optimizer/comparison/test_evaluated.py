from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.evaluated import EvaluationComparison, compare_evaluations
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.execution.observations import EvalCall, Observations, TensorSummary

Run = Callable[..., Observations]


def giving(run: Observations, *widths: int, finite: bool = True) -> Observations:
    """``run`` with an evaluation of two samples per call, padded to these widths."""
    outputs = [TensorSummary((2, width), "float32", 1, 1.0, 1.0, 1.0, finite) for width in widths]
    calls = tuple(EvalCall("Net", 4, 2, (output,)) for output in outputs)
    return replace(run, eval_calls=calls, eval_file=None)


def found(original: Observations, other: Observations) -> EvaluationComparison:
    return compare_evaluations(original, other, [original, original], Precision.FLOAT32)


def test_batches_padded_otherwise_cannot_be_summed_up(run: Run) -> None:
    compared = found(giving(run(), 3, 5), giving(run(), 4, 5))
    assert [(f.kind, f.fails) for f in compared.findings] == [(Kind.EVALUATION_OUTPUT, False)]
    assert compared.unseen is not None
    assert "padded otherwise" in compared.unseen


@pytest.mark.parametrize("widths", [(3, 3), (3, 5)])
def test_batches_padded_alike_are_summed_up(run: Run, widths: tuple[int, ...]) -> None:
    original = giving(run(), *widths)
    assert found(original, original).findings == ()
    assert found(original, original).unseen is None


def test_other_outputs_of_one_width_are_no_padding(run: Run) -> None:
    compared = found(giving(run(), 3, 3), giving(run(), 2, 2))
    assert any(f.fails for f in compared.findings)
    assert compared.unseen is None


def test_no_number_is_found_however_batches_are_padded(run: Run) -> None:
    compared = found(giving(run(), 3, 5), giving(run(), 4, 5, finite=False))
    assert [f.kind for f in compared.findings] == [Kind.NON_FINITE]


def test_samples_in_another_order_are_told(run: Run) -> None:
    original = giving(run(), 3, 3)

    def given(*each: tuple[int, ...]) -> Observations:
        calls = zip(original.eval_calls, each, strict=True)
        return replace(original, eval_calls=tuple(replace(c, each=known) for c, known in calls))

    (told,) = found(given((1, 2), (3, 4)), given((4, 1), (2, 3))).findings
    assert (told.fails, told.message) == (False, "Net evaluates the same samples in another order")


def of_batches(run: Run, *calls: tuple[int, float], rows: bool = True) -> Observations:
    """An evaluation by calls of so many samples, each of which gives one number for its batch, and a row for each sample."""
    made: list[EvalCall] = []
    for samples, value in calls:
        loss = TensorSummary((), "float32", 1, value, value, value, True)
        row = TensorSummary((samples, 3), "float32", 1, 1.0, samples**0.5, 1.0, True)
        outputs = (row, loss) if rows else (loss,)
        made.append(EvalCall("Net", 4, samples, outputs))
    return replace(run(), eval_calls=tuple(made), eval_file=None)


def test_what_is_told_of_a_whole_batch_is_not_held_against_that_of_other_batches(run: Run) -> None:
    compared = found(of_batches(run, (8, 1.0), (4, 3.0)), of_batches(run, (12, 2.0)))
    assert [(f.kind, f.fails) for f in compared.findings] == [(Kind.EVALUATION_OUTPUT, False)]
    assert "whole batch" in compared.findings[0].message
    assert compared.unseen is None
    endless = replace(of_batches(run, (12, 2.0)).eval_calls[0].outputs[1], finite=False)
    other = of_batches(run, (12, 2.0))
    (call,) = other.eval_calls
    other = replace(other, eval_calls=(replace(call, outputs=(call.outputs[0], endless)),))
    lost = found(of_batches(run, (8, 1.0), (4, 3.0)), other)
    assert Kind.NON_FINITE in {f.kind for f in lost.findings if f.fails}


def test_of_the_same_batches_it_is_compared(run: Run) -> None:
    compared = found(of_batches(run, (8, 1.0), (4, 3.0)), of_batches(run, (8, 1.0), (4, 3.1)))
    assert any(f.fails for f in compared.findings)


@pytest.mark.parametrize(
    ("value", "same"), [(5.0 / 3.0, True), (2.0, False)], ids=["mean", "other"]
)
def test_nothing_but_a_number_for_a_whole_batch_is_seen_where_it_is_a_mean(
    run: Run, value: float, same: bool
) -> None:
    original = of_batches(run, (8, 1.0), (4, 3.0), rows=False)
    compared = found(original, of_batches(run, (12, value), rows=False))
    assert not any(f.fails for f in compared.findings)
    assert (compared.unseen is None) is same
    assert same or "of a whole batch" in str(compared.unseen)
