"""The search: add what pays, drop what does not, stop early where the first measurements say enough.

It begins with the script as it is. Transforms are added in the order of what a profile says they could save at most; one
that is not shown to be faster goes again. Then the numbers that transforms write are tried, and what was left out is
tried once more all together, since some changes only pay beside others. A plain rewrite takes part as well, so that the
result is never slower than that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from ..measurement import Speedup, student_t
from .configurations import Configuration, alternatives, groups

FEWEST_PAIRS, MOST_PAIRS = 3, 6
HOPELESS = math.log(0.97)
"""A change whose first two pairs are both slower by more than this is not measured further: it cannot be kept, and
the worst that stopping does is to leave a gain out."""


class Outcome(str, Enum):
    """What became of a change. ``ADOPTED``: it pays. ``NOT_PAYING``: its interval includes 1.00x or less."""

    ADOPTED = "adopted"
    NOT_PAYING = "not paying"
    FAILED = "fails"
    NO_TIME = "no time left"


@dataclass(frozen=True)
class Trial:
    """A ``candidate`` measured against ``best``, the best so far; ``speedup`` is None when it could not be."""

    best: Configuration
    candidate: Configuration
    outcome: Outcome
    speedup: Speedup | None
    pairs: int

    @property
    def change(self) -> str:
        """What the candidate does that the best did not."""
        added = self.candidate.transforms - self.best.transforms
        dropped = self.best.transforms - self.candidate.transforms
        parts = [f"+ {', '.join(sorted(added))}"] if added else []
        parts += [f"- {', '.join(sorted(dropped))}"] if dropped else []
        if self.candidate.workers not in (None, self.best.workers):
            parts.append(f"{self.candidate.workers} workers")
        if self.candidate.amp not in (None, self.best.amp):
            parts.append(self.candidate.amp.value if self.candidate.amp else "")
        return " ".join(parts)


class Failed(Exception):
    """A version of the script failed, or showed nothing to measure."""


class NoTimeLeft(Exception):
    """The budget is spent."""


Pair = Callable[[Configuration, Configuration, int], float]
"""Measures a pair of runs: of the best, of the candidate, the number of the pair. Gives the logarithm of the speedup."""


class Search:
    """A search from the original script, with ``pair`` to measure and ``tell`` to be told of each trial."""

    def __init__(self, pair: Pair, tell: Callable[[Trial], None]) -> None:
        self._pair, self._tell = pair, tell
        self.best = Configuration()
        self.trials: list[Trial] = []

    def run(
        self,
        plain: Configuration,
        bound: Callable[[str], float | None],
        workers: int | None,
        cores: int,
    ) -> Configuration:
        """The best configuration found; ``plain`` is a plain rewrite. See the module for the order."""
        for group in groups(plain.transforms, bound):
            self._try(Configuration(self.best.transforms | group))
        for candidate in alternatives(self.best, workers, cores):
            self._try(candidate)
        left = plain.transforms - self.best.transforms
        if len(left) > 1:
            self._try(Configuration(self.best.transforms | left, self.best.workers, self.best.amp))
        if plain not in [self.best, *(trial.candidate for trial in self.trials)]:
            self._try(plain)
        return self.best

    def _try(self, candidate: Configuration) -> None:
        trial = self._trial(candidate)
        self.trials.append(trial)
        self._tell(trial)
        if trial.outcome is Outcome.ADOPTED:
            self.best = candidate

    def _trial(self, candidate: Configuration) -> Trial:
        ratios: list[float] = []
        try:
            while len(ratios) < MOST_PAIRS:
                ratios.append(self._pair(self.best, candidate, len(ratios)))
                if _decided(ratios):
                    break
        except Failed:
            return Trial(self.best, candidate, Outcome.FAILED, None, len(ratios))
        except NoTimeLeft:
            return Trial(self.best, candidate, Outcome.NO_TIME, None, len(ratios))
        speedup = interval(ratios)
        outcome = Outcome.ADOPTED if speedup.low > 1.0 else Outcome.NOT_PAYING
        return Trial(self.best, candidate, outcome, speedup, len(ratios))


def _decided(ratios: Sequence[float]) -> bool:
    if len(ratios) == 2 and max(ratios) < HOPELESS:
        return True
    if len(ratios) < FEWEST_PAIRS:
        return False
    speedup = interval(ratios)
    return speedup.low > 1.0 or speedup.high < 1.0


def interval(ratios: Sequence[float]) -> Speedup:
    """The speedup of pairs whose logarithms are ``ratios``, with Student's 95 % interval."""
    centre = statistics.fmean(ratios)
    if len(ratios) < 2:
        return Speedup(math.exp(centre), 0.0, math.inf)
    half = student_t(len(ratios) - 1) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return Speedup(math.exp(centre), math.exp(centre - half), math.exp(centre + half))
