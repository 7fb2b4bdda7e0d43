"""A rewrite of a training that rounding scatters, beside an original that is kept in step with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.in_step import judge_in_step
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_numeric
from torchopt_cli.optimizer.execution.observations import Observations

Run = Callable[..., Observations]
Observing = Callable[..., Observations]


def observing(
    original: Observations,
    rewritten: Observations,
    returns: Sequence[str],
    asked: list[str],
    lent: int = 4,
) -> Observing:
    """Runs of the original in step with the rewrite, which tell ``returns``: without and with rounding errors."""
    telling = iter(returns)

    def observe(
        description: str,
        *,
        original: bool,
        stepped_with: Path | None = None,
        keep_steps: bool = False,
        **_: object,
    ) -> Observations:
        asked.append(description)
        if not original:
            assert keep_steps
            return rewritten
        assert stepped_with == rewritten.folder
        return replace(ours, stdout=next(telling), steps_lent=lent)

    ours = original
    return observe


def judged(
    run: Run, told: str, returns: Sequence[str], *, lent: int = 4, repeat: str = "return 20.0"
) -> tuple[Outcome, str, int]:
    """The verdict, its reason and the number of runs made for a rewrite that tells ``told``; neighbours have scattered."""
    first = replace(run(), stdout="return 20.0")
    rewritten = replace(run(), stdout=told)
    near = [replace(run(), stdout=text) for text in ("return 11.0", "return 24.0", "return 17.0")]
    verdict = judge_numeric(first, (), near, rewritten, Precision.FLOAT32)
    assert verdict.outcome is Outcome.EQUIVALENT
    asked: list[str] = []
    observe = observing(first, rewritten, returns, asked, lent)
    repeats = [replace(run(), stdout=repeat)]
    found = judge_in_step(
        verdict, first, repeats, rewritten, observe, Precision.FLOAT32, after=0, wanted=3
    )
    return found.outcome, found.reason, len(asked)


def test_what_the_original_tells_with_the_weights_of_the_rewrite_is_right(run: Run) -> None:
    outcome, _, runs = judged(run, "return 25.0", ["return 25.0"])
    assert (outcome, runs) == (Outcome.EQUIVALENT, 2)


def test_what_it_does_not_tell_with_them_is_wrong(run: Run) -> None:
    outcome, reason, runs = judged(run, "return 26.0", ["return 25.0"] * 4)
    assert (outcome, runs) == (Outcome.NOT_EQUIVALENT, 5)
    assert reason.startswith("with the rewrite's weights in every step of the original: stdout")
    assert "26.0, not 25.0" in reason


def test_what_a_rounding_of_one_step_makes_of_it_may_be_told(run: Run) -> None:
    returns = ["return 25.0", "return 25.0", "return 25.5", "return 25.0"]
    assert judged(run, "return 26.0", returns)[0] is Outcome.EQUIVALENT


@pytest.mark.parametrize("told", ["return 20.0", "return 20.1"])
def test_what_is_told_but_for_a_rounding_needs_no_further_runs(run: Run, told: str) -> None:
    assert judged(run, told, [])[2] == 0


def test_an_original_that_cannot_be_kept_in_step_shows_nothing(run: Run) -> None:
    outcome, _, runs = judged(run, "return 26.0", ["return 25.0"] * 4, lent=0)
    assert (outcome, runs) == (Outcome.EQUIVALENT, 2)


def test_an_original_that_does_not_repeat_itself_is_not_asked(run: Run) -> None:
    assert judged(run, "return 26.0", [], repeat="return 21.0")[2] == 0
