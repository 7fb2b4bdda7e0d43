"""Biases before a normalization: their gradients are zero but for rounding, which hangs on the order of a sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from torchopt_cli.optimizer.comparison.cancelled import cancelled, compare_cancelled
from torchopt_cli.optimizer.comparison.deviation import deviations
from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.numeric import compare_numbers
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.execution.observations import Observations

Run = Callable[..., Observations]
BIAS = "Net.fc1.bias"
SIZE, TERMS = 4.0, 32768


def with_bias_gradient(one: Observations, value: float, size: float = SIZE) -> Observations:
    """``one``, whose bias has the gradient ``value`` in each element, of terms of ``size`` in all."""
    gradients = one.gradients()
    gradients[BIAS] = np.full_like(gradients[BIAS], value)
    save_file(gradients, one.folder / "gradients")
    return replace(one, bias_sums={BIAS: (size, TERMS)})


def judged(run: Run, ours: float, theirs: float, size: float = SIZE) -> list[Finding]:
    near = [with_bias_gradient(run(seed=seed), ours + 1e-7 * seed) for seed in range(3)]
    original, other = (with_bias_gradient(run(), value, size) for value in (ours, theirs))
    found = compare_numbers(original, other, near, Precision.FLOAT32).findings
    return [finding for finding in found if finding.kind is Kind.GRADIENT]


def test_a_sum_in_another_order_leaves_more(run: Run) -> None:
    assert judged(run, 1e-7, 2e-5) == []


def test_more_than_any_order_leaves_is_told(run: Run) -> None:
    (finding,) = judged(run, 1e-7, 1e-2)
    assert (finding.tensor, finding.step) == (BIAS, 1)
    assert "nothing but rounding in the original" in finding.message


def test_what_is_not_a_number_is_told(run: Run) -> None:
    (finding,) = judged(run, 1e-7, float("nan"))
    assert finding.tensor == BIAS


@pytest.mark.parametrize(("ours", "size"), [(1e-7, 1e-3), (1e-3, SIZE)])
def test_gradients_of_terms_that_do_not_cancel_are_judged_as_all_are(
    run: Run, ours: float, size: float
) -> None:
    """The terms are small, too, or their sum is no rounding."""
    (finding,) = judged(run, ours, ours + 1e-3, size)
    assert "further off than their own limit" in finding.message


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16])
def test_how_far_any_order_goes(run: Run, precision: Precision) -> None:
    original = with_bias_gradient(run(), 1e-7)
    assert cancelled(original, precision) == {BIAS: (SIZE, TERMS)}
    most = (TERMS * 2.0**-24 + precision.relative_error) * SIZE
    ours = original.gradients()
    for times, told in ((0.99, []), (1.01, [BIAS])):
        off = times * most / ours[BIAS].size ** 0.5
        theirs = deviations(ours, {BIAS: ours[BIAS] + np.float64(off)})
        found = compare_cancelled({BIAS: (SIZE, TERMS)}, theirs, [], precision)
        assert [finding.tensor for finding in found] == told
