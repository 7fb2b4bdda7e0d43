import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from torchopt_cli.optimizer.comparison.deviation import (
    Deviation,
    change_deviations,
    deviations,
    together,
    undetermined,
)

vectors = arrays(np.float32, st.integers(1, 20), elements=st.floats(-1e3, 1e3, width=32))


@given(vectors)
def test_a_tensor_does_not_deviate_from_itself(vector: np.ndarray) -> None:
    found = deviations({"w": vector}, {"w": vector.copy()})["w"]
    assert (found.distance, found.cosine, found.stretch) == (0.0, 1.0, 0.0)


def test_cosine_and_stretch() -> None:
    found = deviations({"w": np.array([1.0, 0.0])}, {"w": np.array([0.0, 2.0])})["w"]
    assert found.cosine == pytest.approx(0.0)
    assert found.stretch == pytest.approx(1.0)
    assert (
        deviations({"w": np.array([1.0, 1.0])}, {"w": np.array([-1.0, -1.0])})["w"].cosine == -1.0
    )


def test_zero_against_something_has_no_direction_and_endless_stretch() -> None:
    found = deviations({"w": np.zeros(2)}, {"w": np.ones(2)})["w"]
    assert found.cosine == 0.0
    assert found.stretch == math.inf


def test_infinities_are_told() -> None:
    found = deviations({"w": np.ones(2)}, {"w": np.array([1.0, np.inf])})["w"]
    assert found.finite
    assert not found.other_finite
    assert found.cosine == 0.0


@pytest.mark.filterwarnings("error")
def test_infinities_on_both_sides_are_no_warning() -> None:
    found = deviations({"w": np.array([np.inf, 1.0])}, {"w": np.array([-np.inf, 2.0])})["w"]
    assert not found.finite
    assert not found.other_finite


@pytest.mark.filterwarnings("error")
def test_what_is_masked_out_in_both_is_left_out_and_the_rest_compared() -> None:
    ours = np.array([[np.nan, 3.0], [-np.inf, 4.0]])
    found = deviations({"w": ours}, {"w": ours + np.diag([0.0, 1.0])})["w"]
    assert found == Deviation(norm=5.0, other_norm=math.hypot(3.0, 5.0), distance=1.0)
    lost = deviations({"w": ours}, {"w": ours + np.array([[0.0, np.nan], [0.0, 0.0]])})["w"]
    assert (lost.finite, lost.other_finite) == (True, False)


def test_tensors_of_one_run_or_of_other_shapes_are_left_out() -> None:
    ours = {"a": np.ones(2), "b": np.ones(2)}
    assert deviations(ours, {"b": np.ones(3), "c": np.ones(2)}) == {}


@given(st.lists(vectors, min_size=1, max_size=4), st.floats(0.5, 2))
def test_together_is_the_deviation_of_the_concatenation(
    parts: list[np.ndarray], factor: float
) -> None:
    ours = {str(i): part.astype(np.float64) for i, part in enumerate(parts)}
    theirs = {name: part * factor for name, part in ours.items()}
    whole = together(deviations(ours, theirs).values())
    a, b = np.concatenate(list(ours.values())), np.concatenate(list(theirs.values()))
    assert whole.norm == pytest.approx(np.linalg.norm(a))
    assert whole.distance == pytest.approx(np.linalg.norm(b - a), abs=1e-9)


def test_changes_are_measured_from_each_runs_own_start() -> None:
    ours = ({"w": np.array([1.0, 1.0])}, {"w": np.array([1.5, 1.0])})
    theirs = ({"w": np.array([3.0, 1.0])}, {"w": np.array([3.5, 1.0])})
    found = change_deviations(*ours, *theirs)
    assert found == {"w": Deviation(0.5, 0.5, 0.0)}


def test_movement_is_undetermined_where_the_error_reaches_the_gradient() -> None:
    gradient = np.array([1.0, 1e-3, -1e-3, -2.0])
    before, after = np.zeros(4), np.array([-0.1, -0.1, 0.1, 0.1])
    assert undetermined(gradient, before, after, error=2e-2) == pytest.approx(0.1 * 2**0.5)
    assert undetermined(gradient, before, after, error=1e-4) == 0.0


def test_an_undetermined_element_may_move_as_far_as_any_other() -> None:
    gradient = np.array([1.0, 1e-3, 1e-9, 0.0])
    before, after = np.zeros(4), np.array([-0.1, -0.1, -0.01, 0.0])
    assert undetermined(gradient, before, after, error=2e-2) == pytest.approx(0.1 * 2**0.5)


def test_zeros_are_undetermined_only_among_errors() -> None:
    before, after = np.zeros(4), np.array([-0.1, 0.1, 0.0, 0.0])
    nothing_but_rounding = np.array([1e-12, -1e-12, 0.0, 0.0])
    assert undetermined(nothing_but_rounding, before, after, error=math.inf) == pytest.approx(0.2)
    assert undetermined(np.zeros(4), before, after, error=math.inf) == 0.0
