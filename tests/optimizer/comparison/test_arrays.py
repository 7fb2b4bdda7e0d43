"""Named tensors beside parameters and gradients."""

import numpy as np
import pytest

from torchopt_cli.optimizer.comparison.arrays import as_long_as_others, compare_arrays
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision

from .conftest import bfloat16

VALUES = np.random.default_rng(0).normal(size=40).astype(np.float32)
NEAR = [VALUES * np.float32(1.01), VALUES * np.float32(0.98)]
"""What rounding has scattered."""


def judged(theirs: np.ndarray, ours: np.ndarray = VALUES, precision: Precision = Precision.FLOAT32):
    near = [{"w": one} for one in NEAR]
    found = compare_arrays(
        Kind.FILE_VALUE, "content", lambda _: "w.npy", {"w": ours}, {"w": theirs}, near, precision
    )
    return [finding.message for finding in found]


@pytest.mark.parametrize(
    ("theirs", "coarse"),
    [
        (bfloat16(VALUES), "bfloat16"),
        (VALUES.astype(np.float16).astype(np.float32), "float16"),
        (VALUES * np.float32(1.003), None),
    ],
)
def test_what_is_rounded_shows_where_rounding_allows_more(
    theirs: np.ndarray, coarse: str | None
) -> None:
    assert judged(theirs) == ([f"content of w.npy: rounded to {coarse}"] if coarse else [])


def test_a_version_that_computes_so_may_round() -> None:
    assert judged(bfloat16(VALUES), precision=Precision.BFLOAT16) == []


def test_what_the_original_has_rounded_is_no_change() -> None:
    ours = bfloat16(VALUES)
    assert judged(bfloat16(VALUES * np.float32(1.003)), ours) == []


def test_counts_may_be_round() -> None:
    given = [np.array(one, np.float32) for one in ([257, 3, 5, 7], [256, 4, 5, 7], [255, 3, 6, 7])]
    near = [{"w": given[2] + np.float32(4)}, {"w": given[0] - np.float32(40)}]
    given = ({"w": given[0]}, {"w": given[1]}, near, Precision.FLOAT32)
    assert compare_arrays(Kind.FILE_VALUE, "content", lambda _: "w.npy", *given) == []


def test_few_numbers_may_be_round() -> None:
    near = [{"w": one[:2]} for one in NEAR]
    given = ({"w": VALUES[:2]}, {"w": bfloat16(VALUES[:2])}, near, Precision.FLOAT32)
    assert compare_arrays(Kind.FILE_VALUE, "content", lambda _: "w.npy", *given) == []


@pytest.mark.parametrize(
    ("rows", "near", "alike"),
    [(14, (12, 13), True), (20, (12, 14), True), (21, (12, 14), False), (13, (12,), False)],
)
def test_a_list_may_be_longer_as_it_is_in_neighbours(
    rows: int, near: tuple[int, ...], alike: bool
) -> None:
    """The mistakes of a network, say: where a rounding makes one more."""
    given = np.arange(12), np.arange(rows), [np.arange(one) for one in near]
    assert as_long_as_others(*given) == alike


def test_another_kind_of_list_is_no_longer_one() -> None:
    near = [np.zeros((13, 2))]
    for theirs in (np.zeros((13, 3)), np.zeros(13), np.zeros((13, 2), np.float32)):
        assert not as_long_as_others(np.zeros((12, 2)), theirs, near)
