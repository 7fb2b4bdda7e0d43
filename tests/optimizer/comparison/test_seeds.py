import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from torchopt_cli.optimizer.comparison import seeds
from torchopt_cli.optimizer.comparison.seeds import (
    EndLoss,
    EndVerdict,
    SeedPair,
    compare_seeds,
    end_loss,
)
from torchopt_cli.optimizer.execution.observations import Loss, Observations
from torchopt_cli.optimizer.options import MOST_SEEDS

Run = Callable[..., Observations]


def ends(original: Sequence[float], rewritten: Sequence[float], two_sided: bool = False) -> EndLoss:
    both = zip(original, rewritten, strict=True)
    return end_loss(0, tuple(SeedPair(i, a, b) for i, (a, b) in enumerate(both)), two_sided)


def share(verdict: EndVerdict, count: int, correlation: float, shift: float) -> float:
    """How often a rewrite worse by ``shift`` seed-to-seed deviations gets that verdict, in 2000 verifications."""
    random = np.random.default_rng([count, round(100 * correlation), round(10 * shift)])
    original = random.normal(size=(2000, count))
    own = random.normal(size=(2000, count))
    rewritten = correlation * original + math.sqrt(1 - correlation**2) * own + shift
    pairs = zip(original.tolist(), rewritten.tolist(), strict=True)
    return sum(ends(a, b).verdict is verdict for a, b in pairs) / 2000


@pytest.mark.parametrize("count", [3, 5, 10, 20])
@pytest.mark.parametrize("correlation", [1.0, 0.9, 0.0])
def test_a_rewrite_at_the_margin_is_rarely_called_no_worse_or_worse(
    count: int, correlation: float
) -> None:
    """5 % in the long run, 7 % with room for luck."""
    assert share(EndVerdict.NO_WORSE, count, correlation, 1.0) <= 0.07
    assert share(EndVerdict.WORSE, count, correlation, 1.0) <= 0.07


@pytest.mark.parametrize(
    ("count", "correlation", "power"),
    [(5, 1.0, 0.99), (5, 0.9, 0.70), (10, 0.9, 0.95), (10, 0.0, 0.39)],
)
def test_a_rewrite_as_good_is_told_as_often_as_stated(
    count: int, correlation: float, power: float
) -> None:
    assert share(EndVerdict.NO_WORSE, count, correlation, 0.0) >= power
    assert share(EndVerdict.WORSE, count, correlation, 0.0) == 0.0


def test_a_rewrite_that_is_much_worse_is_told() -> None:
    assert share(EndVerdict.WORSE, 5, 1.0, 6.0) >= 0.95


def test_the_quantiles_are_those_of_the_distributions() -> None:
    """Each against 400,000 draws: the share below the tabled point, within five standard errors."""
    random = np.random.default_rng(1)
    error = 5 * math.sqrt(0.05 * 0.95 / 400_000)
    for degrees in (1, 2, 4, 9, 19):
        at = degrees - 1
        chi = random.chisquare(degrees, 400_000)
        t = random.standard_t(degrees, 400_000)
        for draws, point, below in (
            (t, seeds._T[at], 0.95),
            (chi, seeds._CHI_SQUARED_HIGH[at], 0.95),
            (chi, seeds._CHI_SQUARED_LOW[at], 0.05),
        ):
            assert (draws <= point).mean() == pytest.approx(below, abs=error)
    tables = (seeds._T, seeds._CHI_SQUARED_HIGH, seeds._CHI_SQUARED_LOW)
    assert {len(table) for table in tables} == {MOST_SEEDS - 1}
    for table in tables:
        assert list(table) == sorted(table, reverse=table is seeds._T)


def test_of_several_optimizers_a_lower_loss_is_no_better() -> None:
    original, lower = [1.0, 1.1, 0.9, 1.05, 0.95], [0.1, 0.2, 0.0, 0.15, 0.05]
    assert ends(original, lower).verdict is EndVerdict.NO_WORSE
    assert ends(original, lower, two_sided=True).verdict is EndVerdict.WORSE
    assert ends(original, original, two_sided=True).verdict is EndVerdict.NO_WORSE


def test_an_original_that_no_seed_moves_gives_no_margin() -> None:
    assert ends([1.0] * 5, [1.0] * 5).verdict is EndVerdict.NO_WORSE
    assert ends([1.0] * 5, [1.01, 0.99, 1.02, 0.98, 1.0]).verdict is EndVerdict.CANNOT_TELL


def test_two_seeds_cannot_tell() -> None:
    assert ends([1.0, 2.0], [1.0, 2.0]).verdict is EndVerdict.CANNOT_TELL


def shifted(run: Observations, by: float) -> Observations:
    steps = [replace(s, losses=(Loss(s.losses[0].value + by, "float32"),)) for s in run.steps]
    return replace(run, steps=tuple(steps))


def test_runs_are_compared_in_the_mean_of_their_last_quarter(run: Run) -> None:
    one = run(steps=8)
    spread = [0.0, 0.1, -0.1, 0.05]
    pairs = [(seed, shifted(one, by), shifted(one, by + 2.0)) for seed, by in enumerate(spread)]
    found = compare_seeds(pairs)
    assert found.smoothed == 2
    (end,) = found.ends
    last = (one.losses[-1] + one.losses[-2]) / 2
    assert [p.original for p in end.pairs] == pytest.approx([last + by for by in spread])
    assert end.difference == pytest.approx(2.0)
    assert found.verdict is EndVerdict.WORSE
    assert "ends worse: over 4 seeds the loss of the last 2 steps differs by +2" in found.reason


def test_pairs_without_a_finite_end_do_not_count(run: Run) -> None:
    one = run(steps=8)
    pairs = [(seed, one, shifted(one, math.nan if seed else 0.0)) for seed in range(4)]
    found = compare_seeds(pairs)
    assert found.verdict is EndVerdict.CANNOT_TELL
    assert "1 seeds that both versions finish" in found.reason


def test_no_runs_cannot_tell() -> None:
    assert compare_seeds([]).verdict is EndVerdict.CANNOT_TELL
