"""Which shuffles the passes of an original's training have: a rewrite that shuffles by itself is given the same.

A loader's passes are shuffled one after the other (:mod:`.probe.loading`). One that is built anew in every epoch, over data that are
drawn anew, is another loader each time, so that each pass has the first shuffle; those of folds begin again as well.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from .observations import LoaderPass, Observations

ShuffledPass: TypeAlias = tuple[int, int]
"""How many samples there are to shuffle, and the number of the shuffle."""


def shuffled_passes(original: Observations) -> tuple[ShuffledPass, ...]:
    """The shuffled passes that steps were made of, in order, but where they are numbered as a script's own shuffles are anyway.

    Nor where the original draws as long ones itself: the rewrite may draw them as well.
    """
    numbers: dict[int, list[int]] = defaultdict(list)
    for one in shuffled_in_training(original):
        if one.shuffled is not None and one.shuffled not in original.own_shuffles:
            numbers[one.shuffled].append(one.epoch)
    return tuple(
        (length, number)
        for length, found in numbers.items()
        if found != list(range(len(found)))
        for number in found
    )


def shuffled_in_training(run: Observations) -> list[LoaderPass]:
    """The passes that a sampler shuffled and steps were made of."""
    return [one for one in run.loader_passes if one.steps and one.shuffled is not None]
