import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchopt_cli.optimizer.comparison.tolerance import (
    ACCUMULATION,
    FACTOR,
    Precision,
    allowed,
    coarsest,
    perturbation_scale,
    running_envelope,
)


@pytest.mark.parametrize(
    ("precision", "roundoff"),
    [
        (Precision.FLOAT64, 2**-53),
        (Precision.FLOAT32, 2**-24),
        (Precision.TFLOAT32, 2**-11),
        (Precision.FLOAT16, 2**-11),
        (Precision.BFLOAT16, 2**-8),
    ],
)
def test_unit_roundoff_is_that_of_the_significand(precision: Precision, roundoff: float) -> None:
    assert precision.unit_roundoff == roundoff


def test_sums_are_float32_for_reduced_types() -> None:
    assert Precision.BFLOAT16.accumulation == pytest.approx(ACCUMULATION * 2**-24)
    assert Precision.FLOAT64.accumulation == pytest.approx(ACCUMULATION * 2**-53)


def test_reduced_types_are_perturbed_by_one_epsilon_and_float32_by_the_error_of_long_sums() -> None:
    assert perturbation_scale(Precision.BFLOAT16) == pytest.approx(1.0, rel=0.01)
    epsilons = perturbation_scale(Precision.FLOAT32)
    assert epsilons * 2**-23 == pytest.approx(2**-23 + ACCUMULATION * 2**-24)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ([], Precision.FLOAT32),
        (["int64"], Precision.FLOAT32),
        (["float64"], Precision.FLOAT64),
        (["float64", "float32"], Precision.FLOAT32),
        (["float32", "bfloat16", "float16"], Precision.BFLOAT16),
        (["float32", "tfloat32"], Precision.TFLOAT32),
    ],
)
def test_coarsest(dtypes: list[str], expected: Precision) -> None:
    assert coarsest(dtypes) is expected


def test_allowed_is_a_factor_of_the_furthest_neighbour_plus_one_layers_rounding() -> None:
    expected = FACTOR * 0.3 + Precision.BFLOAT16.relative_error * 2.0
    assert allowed([0.1, 0.3], -2.0, Precision.BFLOAT16) == pytest.approx(expected)


def test_a_neighbour_that_is_not_finite_allows_everything() -> None:
    assert allowed([0.1, math.nan], 1.0, Precision.FLOAT32) == math.inf


series = st.lists(st.floats(0, 1e6), min_size=1, max_size=30)


@given(st.lists(series, min_size=1, max_size=4), st.integers(0, 4))
def test_running_envelope_never_shrinks_and_holds_every_neighbour(
    spreads: list[list[float]], ahead: int
) -> None:
    envelope = running_envelope(spreads, ahead)
    assert len(envelope) == max(map(len, spreads))
    assert envelope == sorted(envelope)
    for one in spreads:
        assert all(value <= limit for value, limit in zip(one, envelope, strict=False))


def test_running_envelope_looks_ahead_but_not_from_the_first_step() -> None:
    assert running_envelope([[0.0, 0.0, 5.0, 0.0]], ahead=1) == [0.0, 5.0, 5.0, 5.0]
    assert running_envelope([[1.0, 5.0, 2.0]], ahead=1) == [1.0, 5.0, 5.0]
