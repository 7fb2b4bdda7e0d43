"""Whether a rewrite ends no worse than the original, over several seeds: one-sided non-inferiority.

Both versions run once per seed, and each pair of runs is compared in its **end loss**: the mean over the last quarter
of the steps, so that no single batch decides. The pairs' mean difference has a one-sided 95 % confidence limit by
Student's t on either side. It is held against a **margin**: the standard deviation of the original's own end loss from
seed to seed, since nobody who accepts the luck of a seed can object to less (Bouthillier et al., "Accounting for
Variance in Machine Learning Benchmarks", MLSys 2021, pair by seed and compare with that spread; on non-inferiority
and its margin see Walker and Nowacki, "Understanding Equivalence and Noninferiority Testing", J. Gen. Intern. Med. 26,
2011). A few seeds know that spread badly, so *no worse* asks for a difference below its 95 % lower confidence limit,
and *worse* for one above its upper limit (the chi-squared interval of a variance). A rewrite that is worse by just one
such standard deviation is then called no worse in at most 5 % of verifications, whatever the number of seeds.

**Power.** Of rewrites that are as good, five seeds tell all whose pairs agree closely, three in four where the pairs
correlate with 0.9, and one in five where they do not correlate at all; ten seeds tell 98 % and 43 % of the latter two.

The losses of several optimizers may be each other's opposites (GANs), where lower is not better; they have to stay
within the margin in both directions (two one-sided tests: Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..execution.observations import Observations
from ..options import MOST_SEEDS
from .series import loss

SMOOTHED_PART = 0.25
FEWEST_SEEDS = 3
"""Below, the interval of a variance is so wide that nothing could be told."""

_T = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729),
)
"""95 % points of Student's t for 1 to 19 degrees of freedom."""
_CHI_SQUARED_HIGH = (
    *(3.841, 5.991, 7.815, 9.488, 11.070, 12.592, 14.067, 15.507, 16.919, 18.307),
    *(19.675, 21.026, 22.362, 23.685, 24.996, 26.296, 27.587, 28.869, 30.144),
)
_CHI_SQUARED_LOW = (
    *(0.00393, 0.1026, 0.3518, 0.7107, 1.1455, 1.6354, 2.1673, 2.7326, 3.3251, 3.9403),
    *(4.5748, 5.2260, 5.8919, 6.5706, 7.2609, 7.9616, 8.6718, 9.3905, 10.1170),
)
"""95 % and 5 % points of chi-squared for 1 to 19 degrees of freedom."""


class EndVerdict(str, Enum):
    """What the seeds let one say about the end loss."""

    NO_WORSE = "no worse"
    WORSE = "worse"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class SeedPair:
    """The end losses of both versions with one seed."""

    seed: int
    original: float
    rewritten: float


@dataclass(frozen=True)
class EndLoss:
    """The end loss of one optimizer's steps over the seeds.

    ``difference`` is the mean of rewritten minus original, [``low``, ``high``] its one-sided 95 % limits. ``margin`` is
    what the difference has to be below to be no worse, ``worse_from`` what it has to be above to be worse.
    """

    optimizer: int
    pairs: tuple[SeedPair, ...]
    two_sided: bool
    difference: float
    low: float
    high: float
    margin: float
    worse_from: float

    @property
    def verdict(self) -> EndVerdict:
        if math.isnan(self.difference):
            return EndVerdict.CANNOT_TELL
        if self.high <= self.margin and (not self.two_sided or self.low >= -self.margin):
            return EndVerdict.NO_WORSE
        if self.low > self.worse_from or (self.two_sided and self.high < -self.worse_from):
            return EndVerdict.WORSE
        return EndVerdict.CANNOT_TELL


@dataclass(frozen=True)
class SeedComparison:
    """The end losses of every optimizer, each a mean over ``smoothed`` steps."""

    smoothed: int
    ends: tuple[EndLoss, ...]

    @property
    def verdict(self) -> EndVerdict:
        verdicts = {end.verdict for end in self.ends}
        for worst in (EndVerdict.WORSE, EndVerdict.CANNOT_TELL):
            if worst in verdicts:
                return worst
        return EndVerdict.NO_WORSE if verdicts else EndVerdict.CANNOT_TELL

    @property
    def reason(self) -> str:
        """The verdict in one line, with the figures of the optimizer that decides it."""
        end = next((end for end in self.ends if end.verdict is self.verdict), None)
        if end is None:
            return "no end loss could be compared"
        count = len(end.pairs)
        if count < FEWEST_SEEDS:
            return f"{count} seeds that both versions finish say nothing about the end loss"
        mean = statistics.fmean(pair.original for pair in end.pairs)
        words = {
            EndVerdict.NO_WORSE: "ends no worse",
            EndVerdict.WORSE: "ends elsewhere" if end.two_sided else "ends worse",
            EndVerdict.CANNOT_TELL: "whether it ends no worse, these seeds cannot tell",
        }[self.verdict]
        limit = end.worse_from if self.verdict is EndVerdict.WORSE else end.margin
        return (
            f"{words}: over {count} seeds the loss of the last {self.smoothed} steps differs by {end.difference:+.3g} "
            f"[{end.low:+.3g}, {end.high:+.3g}] from {mean:.4g} (margin {limit:.3g}, from the original's own spread)"
        )


def compare_seeds(runs: Sequence[tuple[int, Observations, Observations]]) -> SeedComparison:
    """Compare runs of both versions, per seed the original's and the rewritten one's."""
    if not runs:
        return SeedComparison(0, ())
    rounds = min(run.rounds for _, *both in runs for run in both)
    smoothed = max(1, round(SMOOTHED_PART * rounds))
    optimizers = sorted({step.optimizer for step in runs[0][1].steps})
    return SeedComparison(
        smoothed,
        tuple(_end_loss(number, runs, smoothed, len(optimizers) > 1) for number in optimizers),
    )


def _end_loss(
    optimizer: int,
    runs: Sequence[tuple[int, Observations, Observations]],
    smoothed: int,
    two_sided: bool,
) -> EndLoss:
    ends = [
        (seed, _smoothed(original, optimizer, smoothed), _smoothed(other, optimizer, smoothed))
        for seed, original, other in runs
    ]
    pairs = tuple(
        SeedPair(seed, ours, theirs)
        for seed, ours, theirs in ends
        if ours is not None and theirs is not None
    )
    return end_loss(optimizer, pairs, two_sided)


def end_loss(optimizer: int, pairs: tuple[SeedPair, ...], two_sided: bool) -> EndLoss:
    """The limits of the difference, and the margin, that these pairs give."""
    count = len(pairs)
    if not FEWEST_SEEDS <= count <= MOST_SEEDS:
        return EndLoss(optimizer, pairs, two_sided, *(math.nan,) * 5)
    differences = [pair.rewritten - pair.original for pair in pairs]
    spread = statistics.stdev(pair.original for pair in pairs)
    mean, degrees = statistics.fmean(differences), count - 1
    half = _T[degrees - 1] * statistics.stdev(differences) / math.sqrt(count)
    return EndLoss(
        optimizer,
        pairs,
        two_sided,
        mean,
        mean - half,
        mean + half,
        spread * math.sqrt(degrees / _CHI_SQUARED_HIGH[degrees - 1]),
        spread * math.sqrt(degrees / _CHI_SQUARED_LOW[degrees - 1]),
    )


def _smoothed(run: Observations, optimizer: int, count: int) -> float | None:
    """The mean loss of the optimizer's last ``count`` steps; None where it is not finite."""
    losses = [
        value for s in run.steps if s.optimizer == optimizer and (value := loss(s)) is not None
    ]
    last = losses[-count:]
    mean = math.fsum(last) / len(last) if last else math.nan
    return mean if math.isfinite(mean) else None
