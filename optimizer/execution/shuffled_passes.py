"""Which shuffles the passes of an original's training have: a rewrite that shuffles by itself is given the same.

A loader's passes are shuffled one after the other (:mod:`.probe.loading`). One that is built anew in every epoch, over data that are
drawn anew, is another loader each time, so that each pass has the first shuffle; those of folds begin again as well.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from .observations import LoaderPass, Observations

ShuffledPass: TypeAlias = "tuple[int, int | None, int]"
"""At least and below how many samples there were to shuffle (None: nobody knows), and the number of the shuffle."""


def shuffled_passes(original: Observations) -> tuple[ShuffledPass, ...]:
    """The shuffled passes that steps were made of, in order; nothing where they are numbered as a script's own are anyway."""
    passes = [p for p in original.loader_passes if p.steps and p.drawn_from is not None]
    numbers: dict[int, list[int]] = defaultdict(list)
    for one in passes:
        numbers[one.samples].append(one.epoch)
    if all(found == list(range(len(found))) for found in numbers.values()):
        return ()
    return tuple((one.samples, _bound(one), one.epoch) for one in passes)


def _bound(one: LoaderPass) -> int | None:
    """What is left of a pass that was read to its end is less than a batch."""
    return (
        one.samples + max(1, one.samples // one.batches) if one.finished and one.batches else None
    )
