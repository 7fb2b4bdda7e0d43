import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchopt_cli.optimizer.execution.observations import Timing
from torchopt_cli.optimizer.measuring.measurement import (
    Speedup,
    SpeedVerdict,
    TimedRun,
    TooShort,
    compare_speeds,
    log_speedups,
    measure,
    read_run,
    speedup,
    warm_up,
)


def noisy(seed: int, seconds: float, steps: int = 40, spread: float = 0.02) -> list[float]:
    """Step times with lognormal noise; runs differ by half of it."""
    random = np.random.default_rng(seed)
    run = seconds * np.exp(random.normal(0, spread / 2))
    return list(run * np.exp(random.normal(0, spread, steps)))


def timed(
    seconds: list[float], startup: float = 2.0, first: float = 0.5, wait: float = 0.0
) -> TimedRun:
    waits = tuple(s * wait for s in seconds)
    return TimedRun(Timing(9.0, startup, first, tuple(seconds), waits))


@pytest.mark.parametrize("slow", [0, 1, 3, 8])
def test_slow_first_steps_are_dropped_and_at_least_half_the_steps_kept(slow: int) -> None:
    for seed in range(10):
        steps = noisy(seed, 0.1)
        steps[:slow] = [s * 4 for s in steps[:slow]]
        dropped, settled = warm_up(steps)
        assert slow <= dropped <= 20
        assert settled


def test_a_spike_in_the_middle_is_no_warm_up() -> None:
    steps = [0.1, 0.101, 0.099] * 10
    steps[14] = 3.0
    assert warm_up(steps) == (0, True)


def test_steps_that_keep_changing_are_not_settled() -> None:
    assert warm_up([1.0 * 0.9**i for i in range(40)]) == (20, False)


@given(st.lists(st.floats(1e-4, 10), min_size=1, max_size=50))
def test_at_most_half_the_steps_are_dropped(steps: list[float]) -> None:
    dropped, _ = warm_up(steps)
    assert 0 <= dropped <= len(steps) // 2


def test_twice_as_fast_is_2x_and_no_change_is_1x() -> None:
    slow, fast = [timed([0.2] * 20)] * 3, [timed([0.1] * 20)] * 3

    def found(a: list[TimedRun], b: list[TimedRun]) -> Speedup:
        return speedup(log_speedups(a, b))

    assert str(found(slow, fast)) == "2.00x [2.00, 2.00]"
    assert str(found(slow, slow)) == "1.00x [1.00, 1.00]"
    assert found(slow, fast).verdict is SpeedVerdict.FASTER
    assert found(fast, slow).verdict is SpeedVerdict.SLOWER
    assert found(slow, slow).verdict is SpeedVerdict.TOO_NOISY


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.1, 1.4, SpeedVerdict.FASTER),
        (0.7, 0.9, SpeedVerdict.SLOWER),
        (0.99, 1.2, SpeedVerdict.TOO_NOISY),
        (1.1, 3.0, SpeedVerdict.FASTER),
    ],
)
def test_a_winner_is_named_only_when_the_interval_allows(
    low: float, high: float, verdict: SpeedVerdict
) -> None:
    assert Speedup((low + high) / 2, low, high).verdict is verdict


def test_one_pair_of_runs_has_no_interval() -> None:
    one = speedup([0.7])
    assert one.verdict is SpeedVerdict.TOO_NOISY
    assert "no interval" in str(one)


@pytest.mark.parametrize("pairs", [2, 3, 5])
def test_the_interval_covers_the_truth_as_often_as_it_says(pairs: int) -> None:
    """Over 100 repetitions of an experiment whose truth is 1.3x; 95 % in the long run, 88 % with room for luck."""
    covered = 0
    for seed in range(100):
        a = [noisy(1000 * seed + i, 0.13) for i in range(pairs)]
        b = [noisy(1000 * seed + 500 + i, 0.10) for i in range(pairs)]
        found = speedup(log_speedups(list(map(timed, a)), list(map(timed, b))))
        covered += found.low <= 1.3 <= found.high
    assert covered >= 88


def test_pairs_cancel_what_slows_the_machine_for_both() -> None:
    factors = [1.0, 1.7, 0.8, 1.3]
    a = [timed([0.2 * f] * 20) for f in factors]
    b = [timed([0.1 * f] * 20) for f in factors]
    found = speedup(log_speedups(a, b))
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)


def test_each_version_goes_first_in_every_other_pair() -> None:
    order: list[str] = []

    def pair(backwards: bool) -> tuple[TimedRun, TimedRun]:
        order.append("BA" if backwards else "AB")
        return timed([0.2] * 10), timed([0.1] * 10)

    assert measure(pair, pairs=4).speedup.factor == pytest.approx(2.0)
    assert order == ["AB", "BA", "AB", "BA"]


def test_what_is_told_of_each_version() -> None:
    found = compare_speeds(
        [
            timed([0.2] * 20, startup=3.0, first=1.0, wait=0.5),
            timed([0.2] * 20, startup=3.0, first=0.4),
        ],
        [timed([0.1] * 20), timed([0.1] * 20)],
        (32.0, None),
    )
    ours = found.original
    assert ours.step_seconds == pytest.approx(0.2)
    assert ours.samples_per_second == pytest.approx(160.0)
    assert found.rewritten.samples_per_second is None
    assert (ours.startup_seconds, ours.first_round_seconds) == (3.0, 1.0)
    assert ours.warm_first_round_seconds == 0.4
    assert ours.data_wait_share == pytest.approx(0.25)
    assert ours.warm_up_rounds == 1


def test_break_even() -> None:
    plain = [timed([0.2] * 20, first=0.2)] * 2
    compiled = [timed([0.1] * 20, first=10.1)] * 2
    assert compare_speeds(plain, compiled).break_even_rounds == 100
    assert compare_speeds(plain, plain).break_even_rounds == 0
    assert compare_speeds(compiled, [timed([0.2] * 20, first=99.0)] * 2).break_even_rounds is None


def test_slow_steps_of_the_warm_up_count_towards_break_even() -> None:
    plain = [timed([0.2] * 20, first=0.2)] * 2
    slow_start = [timed([2.1] * 5 + [0.1] * 15, first=0.1)] * 2
    assert compare_speeds(plain, slow_start).break_even_rounds == 100


def test_rounds_between_waits_for_the_device_are_averaged() -> None:
    seconds = (0.9, 0.01, 0.01, 0.28, 0.02, 0.28)
    run = read_run(Timing(9.0, 1.0, 1.0, seconds, (0.0,) * 6, synchronised=(0, 2, 4, 6)))
    assert run.steps.seconds == pytest.approx((0.455, 0.145, 0.15))
    assert run.steps.rounds == (2, 2, 2)


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_batches_that_come_in_bursts_cost_what_they_cost_on_average(workers: int) -> None:
    """Every few steps one waits for as many batches as there are workers, the others for none."""
    waits = [0.1 * workers if step % workers == 0 else 0.0 for step in range(10 * workers)]
    seconds = tuple(0.02 + wait for wait in waits)
    run = read_run(Timing(9.0, 1.0, 1.0, seconds, tuple(waits)))
    assert run.median_seconds == pytest.approx(0.12, rel=0.15)


def test_the_spikes_of_other_steps_stay_with_them() -> None:
    seconds = (0.1,) * 20 + (3.0,) + (0.1,) * 20
    assert read_run(Timing(9.0, 1.0, 1.0, seconds, (0.05,) * 41)).median_seconds == pytest.approx(
        0.1
    )


@pytest.mark.parametrize(("seconds", "told"), [((), "no step"), ((0.1,), "only 1 step after")])
def test_a_run_of_one_step_is_too_short(seconds: tuple[float, ...], told: str) -> None:
    """What there is to do about it is said: a user knows steps, and the script's own options."""
    with pytest.raises(TooShort, match=rf"^{told}.*the script has to make more of them$"):
        read_run(Timing(9.0, 1.0, 1.0, seconds, (0.0,) * len(seconds)))


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_equal_scripts_are_rarely_called_faster_or_slower(correlation: float) -> None:
    """Also where slow steps come in spells. 2.5 % each in the long run, if the interval is as good as it says."""
    random = np.random.default_rng(5)

    def run() -> TimedRun:
        drawn = random.normal(0, 0.02, 20)
        for i in range(1, 20):
            fresh = (1 - correlation**2) ** 0.5 * drawn[i]
            drawn[i] = correlation * drawn[i - 1] + fresh
        return timed(list(0.1 * np.exp(random.normal(0, 0.01) + drawn)))

    verdicts = [
        speedup(log_speedups([run() for _ in range(3)], [run() for _ in range(3)])).verdict
        for _ in range(80)
    ]
    assert verdicts.count(SpeedVerdict.FASTER) <= 6
    assert verdicts.count(SpeedVerdict.SLOWER) <= 6


@pytest.mark.parametrize("truth", [1.0, 1.05])
def test_the_interval_of_pairs_holds_what_it_promises(truth: float) -> None:
    random = np.random.default_rng(1)

    def holds() -> bool:
        found = speedup(list(random.normal(math.log(truth), 0.02, 4)))
        return found.low <= truth <= found.high

    assert 0.93 < sum(holds() for _ in range(3000)) / 3000 < 0.97


@pytest.mark.parametrize("rounds", [40, 200])
def test_batches_made_ahead_are_warm_up(rounds: int) -> None:
    """While the first round is compiled, eight workers make two batches each; then a step waits for its own."""
    waits = (0.0,) * 16 + (0.09,) * (rounds - 16)
    seconds = tuple(0.01 + wait for wait in waits)
    timing = Timing(9.0, 1.0, 30.0, seconds, waits, workers=True, ahead=16)
    run = read_run(timing)
    assert run.warm_up >= 16
    assert run.median_seconds == pytest.approx(0.1, rel=0.25)
    blocks = replace(timing, synchronised=tuple(range(0, rounds + 1, 4)), asynchronous=True)
    assert read_run(blocks).warm_up >= 4


def test_of_few_rounds_half_are_left_whatever_was_made_ahead() -> None:
    timing = Timing(9.0, 1.0, 30.0, (0.1,) * 10, (0.0,) * 10, workers=True, ahead=16)
    assert read_run(timing).warm_up == 5
