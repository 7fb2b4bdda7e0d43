"""What a change does to a training as a whole, which may end before the change has paid for itself."""

from __future__ import annotations

import math

from ..execution.observations import Timing
from ..measuring.measurement import log_speedup, read_run


def log_training_speedup(original: Timing, rewritten: Timing, asked: int) -> float:
    """The logarithm of the speed-up of one pair of runs that were asked for so many rounds.

    Of a training that goes on beyond those, it is that of a step. One that ends by itself is taken as a whole: its first
    round, in which networks are compiled and workers are started, its warm-up, and the rounds that it has. The start-up before
    that is left out, which is the imports and the data. Raises :class:`TooShort` as :func:`read_run` does.
    """
    step = log_speedup(original, rewritten)
    rounds = 1 + min(len(original.round_seconds), len(rewritten.round_seconds))
    if rounds >= asked:
        return step
    ours, theirs = read_run(original), read_run(rewritten)
    seconds = ours.round_seconds
    before = ours.overhead_seconds - ours.startup_seconds + rounds * seconds
    after = theirs.overhead_seconds - theirs.startup_seconds + rounds * seconds / math.exp(step)
    return math.log(before / after)
