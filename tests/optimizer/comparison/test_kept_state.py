from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.kept_state import compare_state_bits, compare_state_numbers
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.execution.observations import Observations

Run = Callable[..., Observations]
Arrays = Mapping[str, np.ndarray]
MOMENTS = {
    "optimizer 0/exp_avg/Net.fc1.weight": np.linspace(-1, 1, 12, dtype=np.float32),
    "optimizer 0/exp_avg/Net.fc1.bias": np.linspace(-1e-3, 1e-3, 3, dtype=np.float32),
    "optimizer 0/step/Net.fc1.weight": np.array(8.0),
    "optimizer 0/step/Net.fc1.bias": np.array(8.0),
}
FIRST = {"ema.shadow/fc1.weight": np.ones(12, np.float32)}
LAST = {"ema.shadow/fc1.weight": np.full(12, 1.01, np.float32)}


def holding(
    run: Observations, state: Arrays = MOMENTS, first: Arrays = FIRST, last: Arrays = LAST
) -> Observations:
    names: dict[str, str | None] = {}
    for name, arrays in (("state", state), ("first", first), ("last", last)):
        if arrays:
            save_file({key: np.asarray(a).copy() for key, a in arrays.items()}, run.folder / name)
        names[name] = name if arrays else None
    return replace(
        run,
        optimizer_state_file=names["state"],
        first_copies_file=names["first"],
        last_copies_file=names["last"],
    )


def changed(arrays: Arrays, name: str, change: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    (key,) = [key for key in arrays if key.endswith(name)]
    return {**arrays, key: change(arrays[key])}


def failures(original: Observations, other: Observations, *near: Observations) -> list[Finding]:
    found = compare_state_numbers(original, other, near, Precision.FLOAT32)
    return [finding for finding in found if finding.fails]


def test_the_same_state_passes(run: Run) -> None:
    one, two = holding(run()), holding(run())
    assert list(compare_state_bits(one, two)) == []
    assert failures(one, two) == []


@pytest.mark.parametrize("name", ["exp_avg/Net.fc1.bias", "step/Net.fc1.bias"])
def test_any_bit_of_the_state_counts_in_the_exact_tier(run: Run, name: str) -> None:
    other = holding(run(), changed(MOMENTS, name, lambda a: np.nextafter(a, np.float32(2))))
    (finding,) = compare_state_bits(holding(run()), other)
    assert (finding.kind, finding.tensor) == (Kind.OPTIMIZER_STATE, "Net.fc1.bias")
    assert finding.message.startswith(f"{name.split('/')[0]} of optimizer 0 differs")


def test_rounding_of_the_moments_passes_and_a_factor_does_not(run: Run) -> None:
    original = holding(run())
    rounded = changed(MOMENTS, "exp_avg/Net.fc1.weight", lambda a: a * np.float32(1 + 1e-6))
    assert failures(original, holding(run(), rounded)) == []
    scaled = changed(MOMENTS, "exp_avg/Net.fc1.weight", lambda a: a * np.float32(1.01))
    (finding,) = failures(original, holding(run(), scaled))
    assert (finding.kind, finding.step) == (Kind.OPTIMIZER_STATE, 8)
    assert "exp_avg of optimizer 0" in finding.message


def test_what_neighbours_do_is_allowed(run: Run) -> None:
    scaled = changed(MOMENTS, "exp_avg/Net.fc1.weight", lambda a: a * np.float32(1.01))
    assert failures(holding(run()), holding(run(), scaled), holding(run(), scaled)) == []


def test_a_count_of_steps_is_a_whole_number(run: Run) -> None:
    other = holding(run(), changed(MOMENTS, "step/Net.fc1.bias", lambda a: a - 1))
    (finding,) = failures(holding(run()), other)
    assert finding.tensor == "optimizer 0/step/Net.fc1.bias"
    assert finding.message.endswith("7, not 8")


def test_a_number_that_is_zero_in_one_version_alone_is_no_count(run: Run) -> None:
    """L-BFGS has such ones, of products that end up too small for normal numbers."""
    state = {f"optimizer 0/al[{n}]/Net.fc1.weight": np.float32(1.5 * n) for n in range(2)}
    for zero, passes in ((-4e-40, True), (1e-7, True), (0.25, False)):
        other = {**state, "optimizer 0/al[0]/Net.fc1.weight": np.float32(zero)}
        assert (failures(holding(run(), state), holding(run(), other)) == []) == passes
    tiny = {name: np.float32(0) for name in state}
    other = {**tiny, "optimizer 0/al[0]/Net.fc1.weight": np.float32(-4e-40)}
    assert failures(holding(run(), tiny), holding(run(), other)) == []


def test_state_after_other_skipped_steps_is_left_out(run: Run) -> None:
    other = holding(run(), changed(MOMENTS, "step/Net.fc1.bias", lambda a: a - 1))
    steps = (replace(other.steps[0], skipped=True), *other.steps[1:])
    assert failures(holding(run()), replace(other, steps=steps)) == []


def test_copies_after_other_skipped_steps_are_left_out(run: Run) -> None:
    other = holding(run(), first=changed(FIRST, "fc1.weight", lambda a: a * np.float32(1.1)))
    assert failures(holding(run()), other)
    steps = (replace(other.steps[0], skipped=True), *other.steps[1:])
    assert failures(holding(run()), replace(other, steps=steps)) == []


def test_a_moment_that_is_gone(run: Run) -> None:
    less = {name: array for name, array in MOMENTS.items() if "exp_avg" not in name}
    (finding,) = failures(holding(run()), holding(run(), less))
    assert finding.message == "exp_avg of optimizer 0 is not kept any more"


def test_a_history_may_be_as_short_as_a_neighbour_has_it(run: Run) -> None:
    steps = {f"optimizer 0/al[{i}]/Net.fc1.bias": np.array(0.5 + i) for i in range(3)}
    short = dict(list(steps.items())[:2])
    whole, shorter = holding(run(), steps), holding(run(), short)
    (finding,) = failures(whole, shorter, holding(run(), steps))
    assert finding.message == "al of optimizer 0 is not kept any more"
    assert failures(whole, shorter, holding(run(), steps), holding(run(), short)) == []


def test_copies_are_judged_by_how_far_they_moved(run: Run) -> None:
    original = holding(run())
    faster = changed(LAST, "fc1.weight", lambda a: a + np.float32(1e-5))
    # A thousandth of the movement, though it is less than rounding of the weights themselves.
    (finding,) = failures(original, holding(run(), last=faster))
    assert (finding.kind, finding.tensor) == (Kind.WEIGHT_COPY, "ema.shadow/fc1.weight")
    assert finding.message.startswith(
        "movement up to step 8 of the weights of `ema.shadow`, which no optimizer trains: "
    )


def test_copies_that_start_otherwise(run: Run) -> None:
    other = holding(run(), first=changed(FIRST, "fc1.weight", lambda a: a * np.float32(1.001)))
    (finding,) = failures(holding(run()), other)
    assert (finding.kind, finding.step) == (Kind.WEIGHT_COPY, 1)


def test_copies_under_other_names_are_told_and_not_compared(run: Run) -> None:
    (finding,) = compare_state_bits(holding(run()), holding(run(), first={}, last={}))
    assert not finding.fails
    assert "ema.shadow" in finding.message
