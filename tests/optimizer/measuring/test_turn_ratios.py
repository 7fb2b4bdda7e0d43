"""What a pair of runs that took turns tells, by simulation: noise that comes from one side, drift, steps of several kinds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from torchopt_cli.optimizer.execution.observations import Timing
from torchopt_cli.optimizer.measuring.measurement import log_speedup, speedup
from torchopt_cli.optimizer.measuring.turn_ratios import centre, spread, turn_ratios

TURNS, ROUNDS = 60, 10
Floats = NDArray[np.float64]


def timing(seconds: Floats, rounds: int = ROUNDS, **changes: object) -> Timing:
    """A run that took turns of so many rounds all the time."""
    edges = tuple(range(0, len(seconds) + 1, rounds))
    run = Timing(9.0, 1.0, 0.5, tuple(seconds), (0.0,) * len(seconds), edges, turns=len(edges) - 1)
    return replace(run, **changes)


class Machine:
    """A machine that others use: its pace wanders, and takes single rounds up to ten times as long as they need."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def pair(self, a: Floats, b: Floats, luck: float = 0.01) -> tuple[Timing, Timing]:
        """Runs of two scripts whose rounds need ``a`` and ``b`` seconds on a machine of their own."""
        turns = len(a) // ROUNDS
        pace = np.exp(np.cumsum(self.random.normal(0, 0.1, 2 * turns)))  # doubles within seconds
        return (
            timing(self._disturbed(a, pace[0::2], luck)),
            timing(self._disturbed(b, pace[1::2], luck)),
        )

    def one_after_the_other(self, a: Floats, b: Floats) -> tuple[Timing, Timing]:
        turns = len(a) // ROUNDS
        pace = np.exp(np.cumsum(self.random.normal(0, 0.1, 2 * turns)))
        runs = self._disturbed(a, pace[:turns], 0.01), self._disturbed(b, pace[turns:], 0.01)
        return replace(timing(runs[0]), turns=0), replace(timing(runs[1]), turns=0)

    def _disturbed(self, seconds: Floats, pace: Floats, luck: float) -> Floats:
        waited = self.random.random(len(seconds)) < 0.3
        late = np.where(waited, self.random.exponential(3.0, len(seconds)), 0.0)
        own = np.exp(self.random.normal(0, luck))
        return own * seconds * np.repeat(pace, ROUNDS) * (1 + late)


def same(seconds: float) -> Floats:
    return np.full(TURNS * ROUNDS, seconds)


def test_turns_tell_a_tenth_where_runs_one_after_the_other_cannot() -> None:
    ratios = [log_speedup(*Machine(seed).pair(same(0.010), same(0.011))) for seed in range(60)]
    apart = [
        log_speedup(*Machine(seed).one_after_the_other(same(0.010), same(0.011)))
        for seed in range(60)
    ]
    assert np.mean(ratios) == pytest.approx(math.log(1 / 1.1), abs=0.01)
    assert np.std(ratios) < 0.04
    assert np.std(apart) > 10 * np.std(ratios)


@pytest.mark.parametrize(("pairs", "luck"), [(3, 0.0), (4, 0.02), (8, 0.05)])
def test_the_interval_covers_the_truth_as_often_as_it_says(pairs: int, luck: float) -> None:
    """Of 100 measurements 95 % in the long run; 89 % and more with room for the luck of the seeds."""
    covered = 0
    slow, fast = same(0.013)[: 20 * ROUNDS], same(0.010)[: 20 * ROUNDS]
    for seed in range(100):
        machine = Machine(seed)
        found = speedup([log_speedup(*machine.pair(slow, fast, luck)) for _ in range(pairs)])
        covered += found.low <= 1.3 <= found.high
    assert 89 <= covered <= 99


def test_of_equal_scripts_neither_is_favoured() -> None:
    ratios = [log_speedup(*Machine(seed).pair(same(0.01), same(0.01))) for seed in range(100)]
    assert abs(np.mean(ratios)) < 3 * np.std(ratios) / 10


def test_steps_of_two_kinds_are_compared_kind_by_kind() -> None:
    """Half of the rounds take ten times as long, so that a median of either run lies in the one kind or the other."""
    kinds = np.where(np.arange(TURNS * ROUNDS) % 2, 0.1, 0.01)
    ratios = [log_speedup(*Machine(seed).pair(1.2 * kinds, kinds)) for seed in range(30)]
    assert np.mean(ratios) == pytest.approx(math.log(1.2), abs=0.02)


def test_an_evaluation_is_no_step() -> None:
    """Neither where rounds are told apart, nor where turns are."""
    ours, theirs = 1.1 * same(0.01), same(0.01)
    interludes = tuple(range(0, len(ours), 50))
    ours[::50] += 1.0
    theirs[::50] += 3.0
    for asynchronous, turns in ((False, TURNS), (True, TURNS - len(interludes))):
        told = {"interludes": interludes, "asynchronous": asynchronous}
        found = turn_ratios(timing(ours, **told), timing(theirs, **told), 0)
        assert found == pytest.approx([math.log(1.1)] * turns)


def test_turns_that_all_hold_an_evaluation_are_compared_with_it() -> None:
    interludes = tuple(range(0, TURNS * ROUNDS, ROUNDS))
    told = {"interludes": interludes, "asynchronous": True}
    found = turn_ratios(timing(same(0.02), **told), timing(same(0.01), **told), 0)
    assert found == pytest.approx([math.log(2)] * TURNS)


@pytest.mark.parametrize("turns", [ROUNDS, 1])
def test_steps_that_workers_slow_down_in_bursts_count_by_their_mean(turns: int) -> None:
    """Four of five are fast, and the fifth takes ten times as long: the original is as fast on the whole."""
    ours, theirs = same(0.028), same(0.01)
    theirs[4::5] = 0.1
    beside = timing(theirs, rounds=turns, workers=True)
    found = centre(turn_ratios(timing(ours, rounds=turns), beside, 0))
    assert found == pytest.approx(0.0, abs=0.1)  # by the medians it would be log 2.8


def test_waiting_is_not_averaged_over_the_start_of_an_epoch() -> None:
    waits = [0.0] * 20
    waits[10] = 1.0
    assert spread(waits, (10,)) == tuple(waits)
    assert spread([0.1, 0.3, 5.0, 0.0, 0.2], (2,)) == pytest.approx((0.2, 0.2, 5.0, 0.1, 0.1))


def test_where_a_device_computes_a_turn_counts_as_a_whole() -> None:
    """Rounds return before they are computed; the last of a turn waits for all."""
    launched = np.full(200, 0.001)
    launched[9::10] = 0.091
    ours = timing(launched, asynchronous=True)
    theirs = timing(np.where(launched > 0.01, 0.041, 0.001), asynchronous=True)
    assert turn_ratios(ours, theirs, 0) == pytest.approx([math.log(2.0)] * 20)


def test_the_warm_up_is_left_out_and_at_least_half_is_kept() -> None:
    slow = same(0.01)
    slow[: 5 * ROUNDS] *= 9
    assert turn_ratios(timing(slow), timing(same(0.01)), 5) == [0.0] * 55
    assert len(turn_ratios(timing(slow), timing(same(0.01)), 59)) == TURNS // 2


def test_only_turns_that_both_took_count() -> None:
    long, short = timing(same(0.02)), timing(same(0.01)[: 12 * ROUNDS])
    assert turn_ratios(long, short, 0) == pytest.approx([math.log(2)] * 12)
    assert turn_ratios(replace(long, turns=3), short, 0) == pytest.approx([math.log(2)] * 3)
    assert turn_ratios(replace(long, turns=0), short, 0) == []


def test_turns_of_different_lengths_are_compared_by_what_a_round_takes() -> None:
    ours, theirs = timing(same(0.02)), timing(same(0.01), rounds=20)
    assert turn_ratios(ours, theirs, 0) == pytest.approx([math.log(2)] * 30)


def test_the_centre_bears_what_is_far_away() -> None:
    assert centre([1.0]) == 1.0
    assert centre([1.0, 2.0]) == 1.5
    assert centre([1.0, 1.0, 1.0, 1.0, 100.0]) == 1.0
