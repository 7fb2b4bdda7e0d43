"""What lies behind the end of the perturbed runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.reached import within_reach
from torchopt_cli.optimizer.execution.observations import Observations

Run = Callable[..., Observations]


@pytest.mark.parametrize(
    ("finding", "fails"),
    [
        (Finding(Kind.LOSS, "", step=4), True),
        (Finding(Kind.LOSS, "", step=5), False),
        (Finding(Kind.EVALUATION_OUTPUT, "", step=5), True),  # after round 4
        (Finding(Kind.EVALUATION_OUTPUT, "", step=6), False),
        (
            Finding(Kind.STDOUT, "a number", step=5, beyond=2.0),
            True,
        ),  # behind the last round of two
        (Finding(Kind.STDOUT, "a number", step=6, beyond=2.0), False),
        (Finding(Kind.STDOUT, "other words", step=6), True),
        (Finding(Kind.SAMPLES, "", step=6), True),
        (Finding(Kind.PARAMETER, ""), True),
    ],
)
def test_values_that_fewer_than_two_neighbours_come_to_are_told(
    run: Run, finding: Finding, fails: bool
) -> None:
    original = run(steps=6)
    near = [replace(original, rounds=rounds) for rounds in (6, 4, 3)]
    (told,) = within_reach([finding], original, near, 2)
    assert told.fails == fails
    assert ("ends after 4 rounds" in told.message) != fails
    whole = [original] * 3
    assert within_reach([finding], original, whole, 2) == [finding]
    assert within_reach([finding], original, (), 2) == [finding]
