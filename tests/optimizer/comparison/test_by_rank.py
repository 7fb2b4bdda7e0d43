from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from torchopt_cli.optimizer.comparison.by_rank import judge_each_rank
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.stages import Equivalence, judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import LoaderPass, Observations, Status

Run = Callable[..., Observations]


def together(*ranks: Observations, **changes: Any) -> Observations:
    return replace(ranks[0], ranks=ranks, **changes)


def towards_zero(values: np.ndarray) -> np.ndarray:
    """Of float32, the last bit."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFFFFE)).view(np.float32).reshape(np.shape(values))


class _Laboratory:
    """Observes the original, whose ranks train alike."""

    def __init__(self, run: Run) -> None:
        self.asked: list[str] = []
        self._run = run

    def __call__(self, description: str, *, perturb: Any = None, **_: object) -> Observations:
        self.asked.append(description)
        if perturb is None:
            return together(self._run(), self._run())
        near = [self._run(perturb=2**-22, seed=perturb.seed + 10 * rank) for rank in range(2)]
        return together(*near)


@pytest.fixture
def laboratory(run: Run) -> _Laboratory:
    return _Laboratory(run)


judge = partial(judge_in_stages, tier=None, precision=None, perturbed_runs=3)


def verdict_on(rewritten: Observations, run: Run, observe: _Laboratory) -> Verdict:
    return judge_each_rank(together(run(), run()), rewritten, observe, judge).verdict


def test_ranks_that_do_the_same_are_equivalent(run: Run, laboratory: _Laboratory) -> None:
    verdict = verdict_on(together(run(), run()), run, laboratory)
    assert verdict.outcome is Outcome.EQUIVALENT
    assert verdict.reason == "bit for bit the same over 8 steps, on each of 2 ranks"
    assert laboratory.asked == ["original, again"]


def test_every_run_is_made_once_for_all_ranks(run: Run, laboratory: _Laboratory) -> None:
    rounded = [run(rounding=towards_zero), run(rounding=towards_zero)]
    verdict = verdict_on(together(*rounded), run, laboratory)
    assert verdict.outcome is Outcome.EQUIVALENT, verdict.reason
    assert len(laboratory.asked) == len(set(laboratory.asked)) == 4


def test_a_mistake_of_one_rank_is_told_with_it(run: Run, laboratory: _Laboratory) -> None:
    wrong = run(adam=True)
    verdict = verdict_on(together(run(), wrong), run, laboratory)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.reason.startswith("rank 1: ")


def test_what_no_rounding_explains_comes_before_its_consequences(
    run: Run, laboratory: _Laboratory
) -> None:
    wrong = run(adam=True)
    dropped = replace(wrong, status=Status.STOPPED, loader_passes=(LoaderPass(0, 0, 8, 9, False),))
    verdict = verdict_on(together(wrong, dropped), run, laboratory)
    assert verdict.reason.startswith("rank 1: ")
    assert any(finding.kind is Kind.SAMPLES for finding in verdict.failures)


def test_another_number_of_processes_is_another_training(run: Run, laboratory: _Laboratory) -> None:
    verdict = verdict_on(together(run()), run, laboratory)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.reason == "rank-disagreement: trains in 1 process, the original in 2"
    assert not laboratory.asked


def test_a_run_that_failed_is_told_as_the_rank_that_failed_first(
    run: Run, laboratory: _Laboratory
) -> None:
    failed = dict(status=Status.FAILED, exit_code=1, traceback="ValueError: odd", failed_rank=1)
    verdict = verdict_on(together(run(), run(), **failed), run, laboratory)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert "rank 1: ValueError: odd" in verdict.reason


def test_a_perturbed_run_that_lost_a_rank_says_nothing(run: Run) -> None:
    class Failing(_Laboratory):
        def __call__(self, description: str, *, perturb: Any = None, **how: object) -> Observations:
            seen = super().__call__(description, perturb=perturb, **how)
            return seen if perturb is None else replace(seen, status=Status.FAILED)

    rounded = [run(rounding=towards_zero), run(rounding=towards_zero)]
    verdict = verdict_on(together(*rounded), run, Failing(run))
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_rank_0_has_the_files_of_all(run: Run, laboratory: _Laboratory) -> None:
    seen: list[int] = []

    def count(first: Observations, rewritten: Observations, _: object) -> Equivalence:
        seen.append(len(rewritten.checkpoints))
        return judge(first, rewritten, laboratory)

    ranks = (replace(run(), checkpoints=()), replace(run(), checkpoints=()))
    saved = together(*ranks, checkpoints=run().checkpoints)
    judge_each_rank(saved, saved, laboratory, count)
    assert seen == [len(saved.checkpoints), 0]
    assert seen[0] > 0
