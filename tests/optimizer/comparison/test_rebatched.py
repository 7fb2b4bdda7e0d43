from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from torchopt_cli.optimizer.comparison.rebatched import cut_like, rebatched, shuffled
from torchopt_cli.optimizer.execution.observations import (
    EvalCall,
    LoaderPass,
    Observations,
    ReadMark,
)

Run = Callable[..., Observations]
ROWS = np.arange(24, dtype=np.float32).reshape(12, 2)


@pytest.fixture
def gave(run: Run, tmp_path: Path) -> Callable[..., Observations]:
    """A run that gave these outputs in eval mode, a call each; ``samples`` of each, if not one per row."""

    def make(*outputs: NDArray[np.float32], samples: tuple[int, ...] = ()) -> Observations:
        counts = samples or tuple(map(len, outputs))
        calls = tuple(EvalCall("Net", 4, count, ()) for count in counts)
        one = replace(run(), eval_calls=calls, folder=tmp_path / str(len(list(tmp_path.iterdir()))))
        one.folder.mkdir()
        save_file(
            {f"{n}.0": output.copy() for n, output in enumerate(outputs)}, one.folder / "eval"
        )
        return one

    return make


def test_the_same_batches_are_what_they_are(gave: Callable[..., Observations]) -> None:
    found = rebatched(gave(ROWS[:8], ROWS[8:]), gave(ROWS[:8], -ROWS[8:]))
    assert (found["0.0"] == ROWS[:8]).all()
    assert (found["1.0"] == -ROWS[8:]).all()


@pytest.mark.parametrize("cuts", [[12], [3, 6, 9], [5], [1, 2, 3]])
def test_other_batches_are_cut_into_the_originals(
    gave: Callable[..., Observations], cuts: list[int]
) -> None:
    found = rebatched(
        gave(ROWS[:8], ROWS[8:]), gave(*(part for part in np.split(ROWS, cuts) if len(part)))
    )
    assert (found["0.0"] == ROWS[:8]).all()
    assert (found["1.0"] == ROWS[8:]).all()


def test_only_what_was_kept_of_both_is_compared(gave: Callable[..., Observations]) -> None:
    original = gave(ROWS[:8], ROWS[8:])
    found = rebatched(original, gave(ROWS[:2], ROWS[2:5]))
    assert found.keys() == {"0.0"}
    assert (found["0.0"] == ROWS[:5]).all()
    assert (cut_like(original.eval_outputs(), found)["0.0"] == ROWS[:5]).all()


def test_what_has_no_row_per_sample_is_compared_in_the_same_batches_alone(
    gave: Callable[..., Observations],
) -> None:
    loss, other = np.array(1.0, np.float32), np.array(2.0, np.float32)
    original = gave(loss, loss, samples=(8, 4))
    assert rebatched(original, gave(other, loss, samples=(8, 4)))["0.0"] == 2.0
    assert rebatched(original, gave(other, samples=(12,))) == {}


def test_of_batches_padded_otherwise_what_all_have_is_compared(
    gave: Callable[..., Observations],
) -> None:
    wide = np.ones((12, 5), np.float32)
    found = rebatched(gave(wide[:8], wide[8:, :4]), gave(wide[:6, :3], wide[6:]))
    assert {name: output.shape for name, output in found.items()} == {"0.0": (8, 3), "1.0": (4, 4)}


def test_rows_in_another_order_are_not_compared(gave: Callable[..., Observations]) -> None:
    def read(run: Observations, order: str) -> Observations:
        mark = ReadMark(12, order, "all", 12, order == "1..12")
        return replace(run, loader_passes=(LoaderPass(0, 0, 1, 12, True, 4, (mark,)),))

    original, other = gave(ROWS), gave(ROWS[::-1])
    assert rebatched(read(original, "1..12"), read(other, "12..1")) == {}
    assert rebatched(read(original, "1..12"), read(other, "1..12")).keys() == {"0.0"}


def given(run: Observations, *each: tuple[int, ...]) -> Observations:
    """``run`` with these samples in its calls."""
    calls = zip(run.eval_calls, each, strict=True)
    return replace(run, eval_calls=tuple(replace(call, each=known) for call, known in calls))


def test_rows_in_another_order_are_found_by_what_goes_in(
    gave: Callable[..., Observations],
) -> None:
    original = given(gave(ROWS[:8], ROWS[8:]), tuple(range(8)), tuple(range(8, 12)))
    order = [5, 11, 2, 3, 0, 1, 4, 10, 8, 9, 6, 7]
    other = given(gave(ROWS[order]), tuple(order))
    assert shuffled(original, other) == {("Net", 4)}
    found = rebatched(original, other)
    assert (found["0.0"] == ROWS[:8]).all()
    assert (found["1.0"] == ROWS[8:]).all()
    assert shuffled(original, original) == frozenset()


def test_two_models_of_one_class_may_be_evaluated_in_turn_or_one_after_the_other(
    gave: Callable[..., Observations],
) -> None:
    first, second, batches = ROWS, -ROWS, ((0, 1, 2, 3), (4, 5, 6, 7))
    in_turn = gave(first[:4], second[:4], first[4:8], second[4:8])
    original = given(in_turn, batches[0], batches[0], batches[1], batches[1])
    other = given(gave(first[:8], second[:8]), (*range(8),), (*range(8),))
    found = rebatched(original, other)
    expected = [first[:4], second[:4], first[4:8], second[4:8]]
    assert all((found[f"{n}.0"] == rows).all() for n, rows in enumerate(expected))


def test_rows_are_found_as_far_as_they_were_kept_and_of_padded_ones_what_all_have(
    gave: Callable[..., Observations],
) -> None:
    wide = np.arange(20, dtype=np.float32).reshape(4, 5)
    original = given(gave(wide), (0, 1, 2, 3))
    other = given(gave(wide[[1, 0], :3], samples=(2, 2)[:1]), (1, 0))
    other = replace(other, eval_calls=(*other.eval_calls, EvalCall("Net", 4, 2, (), each=(3, 2))))
    found = rebatched(original, other)
    assert (found["0.0"] == wide[:2, :3]).all()
    assert (cut_like(original.eval_outputs(), found)["0.0"] == found["0.0"]).all()


def test_other_samples_or_unknown_ones_are_in_no_other_order(
    gave: Callable[..., Observations],
) -> None:
    original = given(gave(ROWS[:4]), (0, 1, 2, 3))
    assert not shuffled(original, given(gave(ROWS[:4]), (3, 2, 1, 1)))
    assert not shuffled(original, gave(ROWS[:4]))
