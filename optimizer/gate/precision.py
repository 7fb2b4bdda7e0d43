"""How often to measure: until the interval is as narrow as the gate needs on the machine it runs on.

The pairs of runs so far show how much a speedup varies from pair to pair; from that follows how many pairs are needed for
an interval of a wanted width, worked out anew after each (Chow and Robbins, "On the asymptotic theory of fixed-width
sequential confidence intervals for the mean", Annals of Mathematical Statistics 36, 1965). How many are needed depends
on the spread and not on the speedup, so stopping there does not favour a result. Stopping earlier where the speedup is
far below the minimum favours one, the failure that it then is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ..measuring.measurement import student_t

FIRST_PAIRS = 4
SMALLEST_MARGIN = 0.02
"""On the logarithm of the speedup: nothing closer to the minimum than two percent is told apart from it."""
_SHARE_OF_MARGIN = 1 / 2.4
"""With this part of the margin for half of its width, an interval reaches across the minimum in one gate of a thousand:
the standard error is then that half over 2.2, and what is left of the margin, 1 - 1 / 2.4, is 3.1 standard errors."""
_HOPELESS = 2.0
"""A speedup further below the minimum than so many halves of its interval is not measured further."""


def pairs_needed(ratios: Sequence[float], minimum: float, expected: float | None) -> int:
    """How many pairs in all show whether the speedup reaches ``minimum``, by the ``ratios`` of those so far.

    ``expected`` is the speedup that is to be told from the minimum, None for what the pairs show. No more than there
    are when they show enough.
    """
    mean, spread = statistics.fmean(ratios), statistics.stdev(ratios)
    t = student_t(len(ratios) - 1)
    if mean + _HOPELESS * t * spread / math.sqrt(len(ratios)) < math.log(minimum):
        return len(ratios)
    shown = mean if expected is None else math.log(expected)
    margin = max(abs(shown - math.log(minimum)), SMALLEST_MARGIN)
    wanted = (t * spread / (margin * _SHARE_OF_MARGIN)) ** 2
    return max(len(ratios), math.ceil(wanted))
