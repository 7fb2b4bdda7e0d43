from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.evaluated import compare_evaluations
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.execution.observations import EvalCall, Observations, TensorSummary

Run = Callable[..., Observations]


def giving(run: Observations, *widths: int, finite: bool = True) -> Observations:
    """``run`` with an evaluation of two samples per call, padded to these widths."""
    outputs = [TensorSummary((2, width), "float32", 1, 1.0, 1.0, 1.0, finite) for width in widths]
    calls = tuple(EvalCall("Net", 4, 2, (output,)) for output in outputs)
    return replace(run, eval_calls=calls, eval_file=None)


def found(original: Observations, other: Observations):
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
