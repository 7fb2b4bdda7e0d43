"""The speed-up within one pair of runs that took turns (:mod:`.execution.turn_taking`).

Both runs train on the same batches in the same order, and a turn of the one lies next to the same turn of the other. So
rounds are compared number by number, each with the one that does the same work under nearly the same conditions:

- **A turn** tells the median, over its rounds, of the logarithm of the original's time over the rewrite's. What disturbs single
  rounds (another program gets the core) drops out, and so does what rounds differ in (every fifth steps another
  optimizer), which a ratio of two medians would not bear. Where a device computes beside the script, single rounds mean
  nothing, and a turn tells the ratio of their sums.
- **The pair** tells the Hodges-Lehmann estimate over its turns: the median of the means of all pairs of turns. Noise that
  disturbs both versions alike is symmetric in the logarithm of a ratio, however one-sided it is in the times, so
  the estimate has no bias; it bears disturbances in 29 % of the turns, and of noise without any makes 95 % of what a mean would
  (Hodges and Lehmann, "Estimates of location based on rank tests", Annals of Mathematical Statistics 34, 1963).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from .execution.observations import Timing

BURST = 17
"""Over how many steps the waiting for data is averaged: twice as many batches as eight workers hand over together."""


def turn_ratios(original: Timing, rewritten: Timing, warm_up: int) -> list[float]:
    """The logarithm of the speed-up in each turn that both took, without the first ``warm_up``, at most half of them.

    Empty where they took no turns.
    """
    ours, theirs = _turns(original), _turns(rewritten)
    both = min(original.turns, rewritten.turns, len(ours), len(theirs))
    single = not (original.asynchronous or rewritten.asynchronous)
    return [_ratio(ours[i], theirs[i], single) for i in range(min(warm_up, both // 2), both)]


def _turns(timing: Timing) -> list[tuple[float, ...]]:
    """The times of the rounds of each turn."""
    seconds, edges = steady_waits(timing), sorted(set(timing.synchronised))
    return [seconds[start:end] for start, end in pairwise(edges)]


def _ratio(ours: Sequence[float], theirs: Sequence[float], single: bool) -> float:
    if single and len(ours) == len(theirs):
        return statistics.median(math.log(a / b) for a, b in zip(ours, theirs, strict=True))
    return math.log(statistics.fmean(ours) / statistics.fmean(theirs))


def steady_waits(timing: Timing) -> tuple[float, ...]:
    """The rounds' times, with the waiting for data of each as :func:`spread` has it."""
    whole = zip(timing.round_seconds, timing.wait_seconds, spread(timing.wait_seconds), strict=True)
    return tuple(taken - waited + usual for taken, waited, usual in whole)


def spread(waits: Sequence[float]) -> tuple[float, ...]:
    """Each the mean of the :data:`BURST` waits around it, of fewer near the ends."""
    half = BURST // 2
    around = (waits[max(0, i - half) : i + half + 1] for i in range(len(waits)))
    return tuple(math.fsum(some) / len(some) for some in around)


def centre(values: Sequence[float]) -> float:
    """The Hodges-Lehmann estimate of where ``values`` lie."""
    return statistics.median((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
