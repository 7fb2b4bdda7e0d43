from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.process import compare_process
from torchopt_cli.optimizer.execution.observations import Observations, Status

Run = Callable[..., Observations]


@pytest.mark.parametrize("status", [Status.FAILED, Status.KILLED])
def test_a_run_that_did_not_end_well_fails(run: Run, status: Status) -> None:
    original = run(steps=2)
    other = replace(original, status=status, exit_code=1, traceback="Traceback\nValueError: no")
    (finding,) = compare_process(original, other)
    assert finding.kind is Kind.EXIT_STATUS
    assert finding.fails


def test_the_last_line_of_the_traceback_is_told(run: Run) -> None:
    original = run(steps=2)
    other = replace(
        original, status=Status.FAILED, exit_code=1, traceback="Traceback\nValueError: no"
    )
    assert "ValueError: no" in compare_process(original, other)[0].message


def test_reaching_the_end_and_being_stopped_are_both_well(run: Run) -> None:
    original = run(steps=2)
    assert compare_process(original, replace(original, status=Status.COMPLETED)) == []


def test_reaching_our_time_limit_is_not_a_crash(run: Run) -> None:
    original = run(steps=2)
    (finding,) = compare_process(original, replace(original, status=Status.TIMED_OUT, rounds=1))
    assert finding.kind is Kind.TIME_LIMIT
    assert finding.fails
