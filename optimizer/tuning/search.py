"""The search: add what pays, drop what does not, stop early where the first measurements say enough.

The plain rewrite is measured first. Then the search begins with the script as it is: transforms, those that wait to be selected by name
among them, are added in the order of what a profile says they could save at most; one that is not shown to be faster goes again. Then
the numbers that transforms write are tried, one after the other, also with a transform that a plain rewrite does without, where it only
waits to be asked for. Where something was
kept, what was left out is tried once more all together, since some changes only pay beside others, and in the end the best takes part
against the plain rewrite, to which it gives way where that seems to be faster; where there is no time for that, the one that gained more
over the original wins. Where nothing is shown to pay, but the plain rewrite seems to, :attr:`Search.in_doubt` has it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ..measuring.measurement import Speedup
from ..measuring.measurement import speedup as speedup_of
from ..options import AmpDtype, CompileMode
from .configurations import WRITTEN_BY, Configuration, alternatives, groups

FEWEST_PAIRS, MOST_PAIRS = 3, 6
HOPELESS = math.log(0.97)
"""A change whose first two pairs are both slower by more than this is not measured further: it cannot be kept, and
the worst that stopping does is to leave a gain out."""
HOPELESS_AT_ONCE = -math.log(1.5)
"""One pair that is slower by more than this suffices: even six pairs show a change as faster then only if it is over 1.8 times as
fast in all the others (Student's t)."""


TELLING = math.log(1.02)
"""What the plain rewrite seems to be faster by where it is worth to look again. A best, other than the script as it is, that it seems
to beat by more than this gives way to it, even where chance could have done it: both are shown to be faster than the script, and one
of them has to be taken."""


WAITING = 0.05
"""Of a step: who waits less for data than that has enough batches ahead."""


class Outcome(str, Enum):
    """What became of a change. ``ADOPTED``: it pays. ``NOT_PAYING``: its interval includes 1.00x or less.
    ``MORE_SAMPLES``: a batch size that does so, whether it is taken or not.
    ``REFUSED``: by the transform, for a reason that it gives.

    ``NOTHING_TO_SAVE``: by the profile it cannot save anything, so that it was not measured by itself.
    """

    ADOPTED = "adopted"
    MORE_SAMPLES = "more samples a second"
    NOT_PAYING = "not paying"
    FAILED = "fails"
    REFUSED = "refused"
    NO_TIME = "no time left"
    NOTHING_TO_SAVE = "nothing to save here"


@dataclass(frozen=True)
class Trial:
    """A ``candidate`` measured against ``best``, the best so far; ``speedup`` is None when it could not be, or not to an end.

    ``ratios`` are the logarithms of the speed-ups that pairs of runs showed; ``reason`` says why it was refused.
    """

    best: Configuration
    candidate: Configuration
    outcome: Outcome
    speedup: Speedup | None = None
    ratios: tuple[float, ...] = ()
    reason: str | None = None

    @property
    def pairs(self) -> int:
        return len(self.ratios)

    @property
    def change(self) -> str:
        """What the candidate does that the best did not."""
        added = self.candidate.transforms - self.best.transforms
        dropped = self.best.transforms - self.candidate.transforms
        parts = [f"+ {', '.join(sorted(added))}"] if added else []
        parts += [f"- {', '.join(sorted(dropped))}"] if dropped else []
        before = self.best.numbers
        parts += [told for n, told in self.candidate.numbers.items() if told != before.get(n)]
        return " ".join(parts) or "the numbers of a plain rewrite"


class Failed(Exception):
    """A version of the script failed, or showed nothing to measure."""


class Refused(Exception):
    """The transform that would write a number does not write it here; the message says why."""


class NoTimeLeft(Exception):
    """The budget is spent."""


Pair = Callable[[Configuration, Configuration, int], float]
"""Measures a pair of runs: of the best, of the candidate, the number of the pair. Gives the logarithm of the speedup."""

Waits = Callable[[Configuration], float | None]
"""The part of its step that a configuration was seen to wait for data; None where it was not measured."""


class Search:
    """A search from the original script, with ``pair`` to measure and ``tell`` to be told of each trial."""

    def __init__(self, pair: Pair, tell: Callable[[Trial], None], waits: Waits) -> None:
        self._pair, self._tell, self._waits = pair, tell, waits
        self.best = Configuration()
        self.trials: list[Trial] = []
        self._first: Trial | None = None

    def run(
        self,
        plain: Configuration,
        bound: Callable[[str], float | None],
        numbers: Mapping[str, Sequence[int | AmpDtype | CompileMode]],
        on_request: Sequence[str] = (),
    ) -> Configuration:
        """The best configuration found; ``plain`` is a plain rewrite, ``numbers`` has the values of each to try.

        ``on_request`` are transforms that a plain rewrite does without. See the module for the order.
        """
        first = self._first = self._measure(plain) if plain.transforms else None
        for group in groups(plain.transforms | frozenset(on_request), bound):
            candidate = Configuration(self.best.transforms | group)
            if all(bound(name) == 0.0 for name in group):
                self._note(Trial(self.best, candidate, Outcome.NOTHING_TO_SAVE))
            else:
                self._try(candidate)
        for number in WRITTEN_BY:
            if number != "prefetch" or self._waits_beside_workers:
                for candidate in alternatives(self.best, plain, number, numbers.get(number, ())):
                    refused = self._try(candidate) is Outcome.REFUSED
                    if refused and WRITTEN_BY[number] not in self.best.transforms:
                        break  # with the same reason for every value
        if self.best == Configuration():
            # All of it together was the first that was measured.
            if first is not None and first.outcome is Outcome.ADOPTED:
                self.best = plain
            return self.best
        left = plain.transforms - self.best.transforms
        if len(left) > 1:
            self._try(replace(self.best, transforms=self.best.transforms | left))
        if first is not None and self.best != plain:
            self._give_way_to(plain, first)
        return self.best

    @property
    def in_doubt(self) -> Trial | None:
        """The plain rewrite's, where it seemed to be faster than the script as it is, but neither it nor anything else was shown to be."""
        first = self._first
        if first is None or self.best != Configuration() or first.outcome is Outcome.FAILED:
            return None
        return first if first.ratios and statistics.fmean(first.ratios) > TELLING else None

    @property
    def _waits_beside_workers(self) -> bool:
        """Whether steps still wait for data that workers make."""
        works = WRITTEN_BY["prefetch"] in self.best.transforms
        return works and (self._waits(self.best) or 0.0) > WAITING

    def measure(self, candidates: Sequence[Configuration]) -> tuple[Trial, ...]:
        """Each of ``candidates`` against the best, which it stays."""
        return tuple(self._measure(candidate) for candidate in candidates)

    def _give_way_to(self, plain: Configuration, first: Trial) -> None:
        """Take ``plain`` where it is the faster one: as measured now, else by the ``first`` trial against the original."""
        last = self._measure(plain)
        if last.outcome is Outcome.NO_TIME:
            gained = (
                first.speedup.factor if first.outcome is Outcome.ADOPTED and first.speedup else 1.0
            )
            better = gained > self._gained
        else:
            seems = last.speedup is not None and math.log(last.speedup.factor) > TELLING
            better = seems and first.outcome is Outcome.ADOPTED
        if better or last.outcome is Outcome.ADOPTED:
            self.best = plain

    @property
    def _gained(self) -> float:
        """What was adopted, over the original."""
        return math.prod(
            t.speedup.factor for t in self.trials[1:] if t.speedup and t.outcome is Outcome.ADOPTED
        )

    def _try(self, candidate: Configuration) -> Outcome:
        trial = self._measure(candidate)
        if trial.outcome is Outcome.ADOPTED:
            self.best = candidate
        return trial.outcome

    def _measure(self, candidate: Configuration) -> Trial:
        asked = (self.best, candidate)
        known = (trial for trial in self.trials if (trial.best, trial.candidate) == asked)
        return next(known, None) or self._note(self._trial(candidate))

    def _note(self, trial: Trial) -> Trial:
        self.trials.append(trial)
        self._tell(trial)
        return trial

    def _trial(self, candidate: Configuration) -> Trial:
        ratios: list[float] = []
        try:
            while len(ratios) < MOST_PAIRS:
                ratios.append(self._pair(self.best, candidate, len(ratios)))
                if _decided(ratios):
                    break
        except Failed:
            return Trial(self.best, candidate, Outcome.FAILED, ratios=tuple(ratios))
        except Refused as refused:
            return Trial(self.best, candidate, Outcome.REFUSED, reason=str(refused))
        except NoTimeLeft:
            return Trial(self.best, candidate, Outcome.NO_TIME, ratios=tuple(ratios))
        speedup = speedup_of(ratios)
        outcome = Outcome.ADOPTED if speedup.low > 1.0 else Outcome.NOT_PAYING
        return Trial(self.best, candidate, outcome, speedup, tuple(ratios))


def _decided(ratios: Sequence[float]) -> bool:
    if ratios[0] < HOPELESS_AT_ONCE or (len(ratios) == 2 and max(ratios) < HOPELESS):
        return True
    if len(ratios) < FEWEST_PAIRS:
        return False
    speedup = speedup_of(ratios)
    return speedup.low > 1.0 or speedup.high < 1.0
