"""What lies between steps now and then: an evaluation, the start of an epoch.

It belongs to a training as its steps do. So the speed-up of a pair of runs is that of whole stretches, from one interlude to the
next, with the steps between them. How many rounds hold one is counted from the first interlude that was timed to the last, so that a
run which ends in the middle of an epoch counts no evaluation without its steps and no steps without their evaluation. Where fewer than
two were timed nobody knows how many steps belong to one, and the speed-up is that of the steps alone. What those of the warm-up
took does not count, only where they were.

Steps are compared as :mod:`.turn_ratios` says. Interludes are few, and one may evaluate where the next does not: it is their mean
times that are compared. Where a device computes beside the script, what lies between two waits for it has an interlude as a whole,
or none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..execution.observations import Timing


@dataclass(frozen=True)
class Stretch:
    """Mean seconds of a round: ``step`` of one that is only a step, ``interlude`` of one that holds more.

    ``share`` is the part of all rounds that do. What can only be told of several ``rounds`` together is their mean, and ``share`` the
    part of such groups.
    """

    step: float
    interlude: float
    share: float
    rounds: int = 1

    @property
    def extra_seconds(self) -> float:
        """What an interlude takes beyond a step."""
        return (self.interlude - self.step) * self.rounds

    @property
    def every(self) -> float:
        """How many rounds hold one interlude."""
        return self.rounds / self.share

    @property
    def round_seconds(self) -> float:
        """A mean round of all."""
        return (1 - self.share) * self.step + self.share * self.interlude


def stretch(timing: Timing, warm_up_rounds: int) -> Stretch | None:
    """What a run shows of whole stretches after its warm-up; None where it shows none."""
    rounds = len(timing.round_seconds)
    return _stretch(timing, warm_up_rounds, rounds, timing.interludes)


def log_stretch_ratio(
    original: Timing, rewritten: Timing, warm_up_rounds: int, steps: float
) -> float:
    """The logarithm of the speed-up of whole stretches of a pair, ``steps`` being that of its steps.

    It is ``steps`` where the runs show no whole stretch.
    """
    rounds = min(len(original.round_seconds), len(rewritten.round_seconds))
    both = sorted({*original.interludes, *rewritten.interludes})
    ours = _stretch(original, warm_up_rounds, rounds, both)
    theirs = _stretch(rewritten, warm_up_rounds, rounds, both)
    if ours is None or theirs is None:
        return steps
    # How many times as fast steps are is known better than from two means, which say how much of the time they are.
    mean = math.sqrt(ours.step * theirs.step)
    before, after = mean * math.exp(steps / 2), mean * math.exp(-steps / 2)
    return math.log(
        ((1 - ours.share) * before + ours.share * ours.interlude)
        / ((1 - theirs.share) * after + theirs.share * theirs.interlude)
    )


def _stretch(
    timing: Timing, warm_up_rounds: int, rounds: int, interludes: Sequence[int]
) -> Stretch | None:
    seconds = timing.round_seconds
    parts = _parts(timing, rounds)
    having = {i for i, part in enumerate(parts) if any(number in part for number in interludes)}
    steady = {
        i: statistics.fmean(seconds[part.start : part.stop])
        for i, part in enumerate(parts)
        if part.start >= warm_up_rounds
    }
    step = [mean for i, mean in steady.items() if i not in having]
    interlude = [mean for i, mean in steady.items() if i in having]
    if len(having) < 2 or not interlude or not step:
        return None
    return Stretch(
        statistics.fmean(step),
        statistics.fmean(interlude),
        (len(having) - 1) / (max(having) - min(having)),
        len(parts[0]),
    )


def _parts(timing: Timing, rounds: int) -> list[range]:
    """What can be told apart of the first so many rounds: each, or as many as lie between two waits for the device."""
    spans = [span for span in timing.spans if span.stop <= rounds]
    if not timing.asynchronous or not spans:
        return [range(i, i + 1) for i in range(rounds)]
    return [span for span in spans if len(span) == len(spans[0])]
