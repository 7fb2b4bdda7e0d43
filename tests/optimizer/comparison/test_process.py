from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.process import compare_process
from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_exact
from torchopt_cli.optimizer.execution.observations import Observations, Status, Versions

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


def test_the_line_of_the_script_that_fails_is_told_with_the_first_line_of_the_error(
    run: Run,
) -> None:
    trace = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    main()
  File "/home/me/model.py", line 7, in forward
    return self.head(x)
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in __call__
    return F.linear(x)
RuntimeError: sizes do not match
at dimension 1
"""
    original = run(steps=2)
    other = replace(original, status=Status.FAILED, exit_code=1, traceback=trace, rounds=0)
    (finding,) = compare_process(original, other)
    assert finding.message == (
        "fails before the first step is complete, where the original does not: "
        "RuntimeError: sizes do not match, in model.py line 7"
    )


@pytest.mark.parametrize(
    ("gpus", "kind"), [(1, Kind.TOO_FEW_GPUS), (2, Kind.EXIT_STATUS), (0, Kind.EXIT_STATUS)]
)
def test_ranks_that_lack_gpus_show_nothing(run: Run, gpus: int, kind: Kind) -> None:
    """Where no GPU was used, or there are enough of them, a crash is the rewrite's."""
    original = replace(run(steps=2), versions=Versions("3.12", "2.11", "NVIDIA H200", gpus))
    crashed = "Traceback\nRuntimeError: CUDA error: invalid device ordinal"
    ranks = (run(steps=0), run(steps=0))
    other = replace(original, status=Status.FAILED, traceback=crashed, ranks=ranks, versions=None)
    (finding,) = compare_process(original, other)
    assert (finding.kind, finding.fails) == (kind, True)
    outcome = judge_exact(original, [original], other).outcome
    assert (outcome is Outcome.INCONCLUSIVE) is (kind is Kind.TOO_FEW_GPUS)
    alone = replace(other, ranks=())
    assert compare_process(original, alone)[0].kind is Kind.EXIT_STATUS
