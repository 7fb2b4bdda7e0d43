from collections.abc import Callable
from dataclasses import replace

import numpy as np

from torchopt_cli.optimizer.comparison.evaluated import compare_evaluations
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.padded import padding_left, without_padding
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.execution.observations import EvalCall, Observations, TensorSummary

Run = Callable[..., Observations]
PADDED = ((0, 1, (1, 3)),)


def evaluated(
    run: Run, padded: tuple[tuple[int, int, tuple[int, ...]], ...], mean: float = 1.0
) -> Observations:
    output = TensorSummary((2, 3), "float32", 1, mean, mean * 6**0.5, mean, True)
    return replace(
        run(), eval_calls=(EvalCall("Net", 4, 2, (output,), padded=padded),), eval_file=None
    )


def test_only_what_the_original_tells(run: Run) -> None:
    told, untold = evaluated(run, PADDED), evaluated(run, ())
    assert padding_left(told, untold) == {("Net", 4)}
    assert padding_left(told, told) == padding_left(untold, told) == frozenset()


def test_padding_is_emptied(run: Run) -> None:
    original, places = evaluated(run, PADDED), frozenset({("Net", 4)})
    output = np.ones((2, 3), dtype=np.float32)
    assert without_padding({"0.0": output}, original, places)["0.0"].tolist() == [
        [1, 0, 0],
        [1, 1, 1],
    ]
    assert without_padding({"0.0": output}, original, frozenset())["0.0"] is output
    assert without_padding({"0.0": output[:1, :2]}, original, places)["0.0"].tolist() == [[1, 0]]
    across = evaluated(run, ((0, 0, (1, 3)),))
    assert without_padding({"0.0": output.T}, across, places)["0.0"].tolist() == [
        [1, 1],
        [0, 1],
        [0, 1],
    ]


def test_sums_over_padding_are_not_compared_and_told(run: Run) -> None:
    original, other = evaluated(run, PADDED), evaluated(run, (), mean=2.0)
    compared = compare_evaluations(original, other, [original, original], Precision.FLOAT32)
    assert [(f.kind, f.fails) for f in compared.findings] == [(Kind.EVALUATION_OUTPUT, False)]
    assert compared.unseen is not None
    assert "padding" in compared.unseen


def test_sums_without_padding_are_compared(run: Run) -> None:
    original, other = evaluated(run, PADDED), evaluated(run, PADDED, mean=2.0)
    compared = compare_evaluations(original, other, [original, original], Precision.FLOAT32)
    assert any(f.fails for f in compared.findings)
