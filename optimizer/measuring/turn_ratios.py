"""The speed-up within one pair of runs that took turns (:mod:`..execution.turn_taking`).

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

Rounds that hold more than a step are left out of both; :mod:`.interludes` has them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from itertools import pairwise

from ..execution.observations import Timing

BURST = 17
"""Over how many steps is averaged what comes in bursts: twice as many batches as eight workers hand over together."""


def turn_ratios(original: Timing, rewritten: Timing, warm_up: int) -> list[float]:
    """The logarithm of the speed-up of a step in each turn that both took, without the first ``warm_up``, at most half of them.

    Empty where they took no turns.
    """
    ours, theirs = _turns(original), _turns(rewritten)
    both = min(original.turns, rewritten.turns, len(ours), len(theirs))
    single = not (original.asynchronous or rewritten.asynchronous)
    more = {*original.interludes, *rewritten.interludes}
    pairs = [(ours[i], theirs[i]) for i in range(min(warm_up, both // 2), both)]
    found = (_ratio(a, b, single, more) for a, b in pairs)
    steps = [ratio for ratio in found if ratio is not None]
    if steps or not pairs:
        return steps
    # No turn without an interlude: all that can be told is what they take with them.
    return [ratio for a, b in pairs if (ratio := _ratio(a, b, single, ())) is not None]


Turn = tuple[range, tuple[float, ...]]
"""The numbers of its rounds, and their times."""


def _turns(timing: Timing) -> list[Turn]:
    seconds = steady_waits(timing)
    return [(span, seconds[span.start : span.stop]) for span in timing.spans]


def _ratio(ours: Turn, theirs: Turn, single: bool, more: Collection[int]) -> float | None:
    """None of a turn in which no step can be told from what is ``more`` than a step."""
    if single and len(ours[1]) == len(theirs[1]):
        rounds = zip(*ours, theirs[1], strict=True)
        ratios = [math.log(a / b) for number, a, b in rounds if number not in more]
        return statistics.median(ratios) if ratios else None
    if any(number in more for number in (*ours[0], *theirs[0])):
        return None
    return math.log(statistics.fmean(ours[1]) / statistics.fmean(theirs[1]))


def steady_waits(timing: Timing) -> tuple[float, ...]:
    """The rounds' times, with the waiting for data of each as :func:`spread` has it; all of their time beside workers.

    Those work in bursts, and while they do, the script computes more slowly: on two cores most rounds took 5 to 60 ms and
    every fifth 100 ms or more, so that the median was a third less than the mean.
    """
    if timing.workers:
        return spread(timing.round_seconds, timing.interludes)
    usual = spread(timing.wait_seconds, timing.interludes)
    whole = zip(timing.round_seconds, timing.wait_seconds, usual, strict=True)
    return tuple(taken - waited + spread_wait for taken, waited, spread_wait in whole)


def spread(waits: Sequence[float], interludes: Sequence[int] = ()) -> tuple[float, ...]:
    """Each the mean of the :data:`BURST` waits around it, of fewer near the ends, and not across ``interludes``.

    Those keep their own: workers that start there are not what the next steps wait for.
    """
    found: list[float] = []
    edges = [-1, *(i for i in interludes if i < len(waits)), len(waits)]
    for before, after in pairwise(edges):
        found += _averaged(waits[before + 1 : after])
        found += waits[after : after + 1]
    return tuple(found)


def _averaged(waits: Sequence[float]) -> list[float]:
    half = BURST // 2
    around = (waits[max(0, i - half) : i + half + 1] for i in range(len(waits)))
    return [math.fsum(some) / len(some) for some in around]


def centre(values: Sequence[float]) -> float:
    """The Hodges-Lehmann estimate of where ``values`` lie."""
    return statistics.median((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
