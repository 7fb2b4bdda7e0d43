"""That measuring until the spread is known gives the interval it promises, by simulation with fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchopt_cli.optimizer.gate.precision import FIRST_PAIRS, pairs_needed
from torchopt_cli.optimizer.measuring.measurement import student_t


def test_runs_that_agree_need_no_more() -> None:
    assert pairs_needed([0.01, 0.011, 0.009, 0.01], 0.95, 1.0) == FIRST_PAIRS


def test_more_are_needed_the_noisier_and_the_closer_to_the_minimum() -> None:
    noisy = [0.05, -0.05, 0.04, -0.04]
    needed = pairs_needed(noisy, 0.95, 1.0)
    assert needed > 20
    assert pairs_needed([2 * ratio for ratio in noisy], 0.95, 1.0) > 3 * needed
    assert pairs_needed(noisy, 0.8, 1.0) < needed
    assert pairs_needed([math.log(2.0) + r for r in noisy], 1.2, None) < needed
    at_the_minimum = pairs_needed([math.log(1.2) + r for r in noisy], 1.2, None)
    assert needed < at_the_minimum < 10_000


def test_far_below_the_minimum_needs_no_more() -> None:
    noisy = [math.log(0.7) + ratio for ratio in (0.05, -0.05, 0.04, -0.04)]
    assert pairs_needed(noisy, 0.95, 1.0) == len(noisy)
    assert pairs_needed([-ratio for ratio in noisy], 0.95, 1.0) > len(noisy)


def gates(speedup: float, spread: float, most: int = 10_000) -> tuple[float, float]:
    """Against a minimum of 0.95, in 500 simulated gates: the part that passes, and how many pairs they take."""
    generator = np.random.default_rng(0)
    passed, pairs = 0, 0
    for _ in range(500):
        ratios = list(generator.normal(math.log(speedup), spread, FIRST_PAIRS))
        while len(ratios) < min(pairs_needed(ratios, 0.95, 1.0), most):
            ratios.append(float(generator.normal(math.log(speedup), spread)))
        half = student_t(len(ratios) - 1) * float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios))
        passed += float(np.mean(ratios)) - half >= math.log(0.95)
        pairs += len(ratios)
    return passed / 500, pairs / 500


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05])
def test_a_clean_change_passes_and_a_slow_one_does_not(spread: float) -> None:
    assert gates(1.0, spread)[0] > 0.98
    assert gates(1 / 1.1, spread)[0] == 0.0
    assert (
        gates(0.95, spread)[0] < 0.07
    )  # looking after each pair costs 2.5 % some of their certainty


def test_a_machine_of_middling_noise_needs_few_pairs() -> None:
    assert gates(1.0, 0.02)[1] < 8
    assert gates(1 / 1.2, 0.05)[1] < gates(1.0, 0.05)[1]
