"""Which of several transforms, applied in order, make a rewrite fail.

The transforms of a rewrite are added in the order they are applied until it first fails: the one added last is to
blame, given those before it. Then the fewest of those that it needs to fail are found in the same way, as QuickXplain
does (Junker, AAAI 2004). A set of ``m`` among ``n`` costs about ``m * (log2(n) + 1)`` tests. No assumption goes into
what is found: the set fails, and each of its members was seen to turn a rewrite that passes into one that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Names: TypeAlias = tuple[str, ...]


def failing_set(names: Sequence[str], fails: Callable[[Names], bool]) -> Names:
    """A small subset of ``names`` that ``fails``, in their order; ``names`` as a whole do.

    ``fails`` gets subsets in the order of ``names``. The empty one is never asked about: it is the original.
    """
    found: Names = ()
    earlier = tuple(names)
    while not found or (earlier and not fails(found)):
        passing, failing = 0, len(earlier)
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if fails(earlier[:middle] + found):
                failing = middle
            else:
                passing = middle
        found = (earlier[failing - 1], *found)
        earlier = earlier[: failing - 1]
    return found
