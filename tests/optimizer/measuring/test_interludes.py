"""Evaluation and the start of an epoch, as often as they come."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.execution.observations import Timing
from torchopt_cli.optimizer.measuring.interludes import stretch
from torchopt_cli.optimizer.measuring.measurement import (
    TimedRun,
    compare_speeds,
    log_speedup,
    pace,
    read_run,
)


def run(
    step: float,
    more: float,
    *,
    every: int = 20,
    rounds: int = 100,
    first: int = 10,
    turn: int = 0,
    asynchronous: bool = False,
    interludes: bool = True,
) -> Timing:
    """Rounds of ``step`` seconds; every so many, from the ``first`` on, one takes ``more`` beyond that."""
    holding = range(first, rounds, every)
    seconds = [step + (more if i in holding else 0.0) for i in range(rounds)]
    return Timing(
        9.0,
        1.0,
        0.5,
        tuple(seconds),
        (0.0,) * rounds,
        tuple(range(0, rounds + 1, turn)) if turn else (),
        interludes=tuple(holding) if interludes else (),
        asynchronous=asynchronous,
        turns=rounds // turn if turn else 0,
    )


TURNS = pytest.mark.parametrize(
    "turns", [{}, {"turn": 2}, {"turn": 2, "asynchronous": True}], ids=["apart", "turns", "device"]
)


@TURNS
def test_a_faster_evaluation_counts_as_often_as_it_comes(turns: dict[str, int]) -> None:
    """0.2 s of steps and 0.6 s of evaluation against 0.2 s and 0.1 s."""
    found = log_speedup(run(0.01, 0.6, **turns), run(0.01, 0.1, **turns))
    assert math.exp(found) == pytest.approx(0.8 / 0.3)


@TURNS
def test_where_steps_are_faster_an_evaluation_that_is_not_takes_its_part(
    turns: dict[str, int],
) -> None:
    found = log_speedup(run(0.02, 0.2, **turns), run(0.01, 0.2, **turns))
    assert math.exp(found) == pytest.approx(0.6 / 0.4)


@pytest.mark.parametrize("rounds", [61, 70, 89, 90])
def test_it_does_not_matter_where_in_an_epoch_a_run_ends(rounds: int) -> None:
    ours, theirs = (run(0.01, more, rounds=rounds, first=20) for more in (0.6, 0.1))
    assert math.exp(log_speedup(ours, theirs)) == pytest.approx(0.8 / 0.3)


@pytest.mark.parametrize("change", [{"rounds": 29}, {"interludes": False}])
def test_of_fewer_than_two_the_steps_alone_are_told(change: dict[str, int]) -> None:
    ours, theirs = run(0.02, 3.0, **change), run(0.01, 1.0, **change)
    assert log_speedup(ours, theirs) == pytest.approx(math.log(2.0))
    assert stretch(ours, 0) is None
    told = compare_speeds([TimedRun(ours)], [TimedRun(theirs)]).original
    assert (told.interlude_seconds, told.interlude_rounds) == (None, None)
    assert told.round_seconds == told.step_seconds == 0.02


def test_a_loader_that_is_begun_anew_for_every_batch_makes_no_interlude() -> None:
    ours, theirs = run(0.02, 0.0, every=1, first=0), run(0.01, 0.0, every=1, first=0)
    assert stretch(ours, 0) is None
    assert log_speedup(ours, theirs) == pytest.approx(math.log(2.0))


def test_one_that_only_the_rewrite_has_counts_for_both() -> None:
    ours, theirs = run(0.01, 0.0, interludes=False), run(0.01, 0.2)
    assert math.exp(log_speedup(ours, theirs)) == pytest.approx(0.2 / 0.4)


@TURNS
def test_what_is_told_of_a_version(turns: dict[str, int]) -> None:
    slow, fast = TimedRun(run(0.01, 0.6, **turns)), TimedRun(run(0.01, 0.1, **turns))
    found = compare_speeds([slow, slow], [fast, fast])
    assert found.original.step_seconds == pytest.approx(0.01)
    assert found.original.round_seconds == pytest.approx(0.04)
    assert found.original.interlude_seconds == pytest.approx(0.6)
    assert found.original.interlude_rounds == pytest.approx(20)
    assert found.speedup.factor == pytest.approx(0.8 / 0.3)


@pytest.mark.parametrize("turn", [0, 1, 5, 20, 50])
def test_a_step_is_a_step_however_many_rounds_a_turn_has(turn: int) -> None:
    found = read_run(run(0.01, 0.6, turn=turn))
    assert found.median_seconds == pytest.approx(0.01)
    assert found.round_seconds == pytest.approx(0.04)
    assert sum(found.steps.rounds) == 100


def test_the_warm_up_counts_for_neither() -> None:
    timing = run(0.01, 0.6)
    slow = (9.0,) * 15 + timing.round_seconds[15:]
    warm = Timing(9.0, 1.0, 0.5, slow, timing.wait_seconds, interludes=timing.interludes)
    assert read_run(warm).round_seconds == pytest.approx(0.04)


@pytest.mark.parametrize("rounds", [45, 100])
@TURNS
def test_what_the_first_epoch_compiles_is_warm_up(turns: dict[str, int], rounds: int) -> None:
    """Its last batch, which is smaller, and the first evaluation."""
    ours, theirs = run(0.02, 0.1, rounds=rounds, **turns), run(0.01, 0.05, rounds=rounds, **turns)
    seconds = [*theirs.round_seconds]
    seconds[9] += 3.0
    seconds[10] += 5.0
    theirs = replace(theirs, round_seconds=tuple(seconds))
    assert log_speedup(ours, theirs) == pytest.approx(math.log(2.0))
    found = compare_speeds([TimedRun(ours)], [TimedRun(theirs)])
    assert found.rewritten.step_seconds == pytest.approx(0.01)
    assert found.rewritten.round_seconds == pytest.approx(0.0125)
    assert found.rewritten.interlude_seconds == pytest.approx(0.05)


def test_the_pace_of_a_run_is_that_of_all_it_does() -> None:
    assert pace(run(0.01, 0.6, first=0)) == pytest.approx(0.04)
    assert pace(Timing(9.0)) == 0.0
