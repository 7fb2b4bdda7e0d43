"""Which lines of two texts are the same: ``difflib``'s answer, in time that does not grow with the square of repeated lines.

``difflib.SequenceMatcher`` looks at every pair of equal lines, over and over: a table of numbers with ten thousand equal
lines takes minutes. What two texts begin and end with in common is left out of its search. Where that leaves very many
pairs the texts are cut at the lines that both have once, as patience diff does (https://bramcohen.livejournal.com/73318.html).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

Run: TypeAlias = tuple[int, int, int]
"""Indices in both texts, and how many lines are the same from there on."""
_MANY_PAIRS = 1_000_000
"""Pairs of equal lines that are gone over in tenths of a second; a file of a few thousand lines has fewer."""


def same_runs(old: Sequence[str], new: Sequence[str]) -> list[Run]:
    """The runs of lines that ``old`` and ``new`` have in common, in order; no two of them touch in both."""
    joined: list[Run] = []
    for a, b, size in _runs(old, new):
        if joined and (joined[-1][0] + joined[-1][2], joined[-1][1] + joined[-1][2]) == (a, b):
            a, b, before = joined.pop()
            size += before
        joined.append((a, b, size))
    return joined


def _runs(old: Sequence[str], new: Sequence[str]) -> Iterator[Run]:
    shortest = min(len(old), len(new))
    head = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    tail = next((i for i in range(shortest - head) if old[-1 - i] != new[-1 - i]), shortest - head)
    if head:
        yield 0, 0, head
    middle = _middle_runs(old[head : len(old) - tail], new[head : len(new) - tail])
    yield from ((a + head, b + head, size) for a, b, size in middle)
    if tail:
        yield len(old) - tail, len(new) - tail, tail


def _middle_runs(old: Sequence[str], new: Sequence[str]) -> Iterator[Run]:
    ours, theirs = Counter(old), Counter(new)
    anchors: list[tuple[int, int]] = []
    if sum(count * theirs[line] for line, count in ours.items()) > _MANY_PAIRS:
        once = {line for line, count in ours.items() if count == theirs[line] == 1}
        places = {line: place for place, line in enumerate(new) if line in once}
        anchors = _in_order([(a, places[line]) for a, line in enumerate(old) if line in once])
    if not anchors:
        blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
        yield from ((block.a, block.b, block.size) for block in blocks if block.size)
        return
    start, begin = 0, 0
    for a, b in [*anchors, (len(old), len(new))]:
        yield from ((i + start, j + begin, n) for i, j, n in _runs(old[start:a], new[begin:b]))
        if a < len(old):
            yield a, b, 1
        start, begin = a + 1, b + 1


def _in_order(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """As many of ``pairs``, which ascend in the first, as ascend in the second, too (patience sorting)."""
    tops: list[int] = []
    chains: list[tuple[tuple[int, int], int | None]] = []
    ends: list[int] = []
    for number, pair in enumerate(pairs):
        pile = bisect_left(tops, pair[1])
        chains.append((pair, ends[pile - 1] if pile else None))
        tops[pile : pile + 1], ends[pile : pile + 1] = [pair[1]], [number]
    found: list[tuple[int, int]] = []
    link = ends[-1] if ends else None
    while link is not None:
        pair, link = chains[link]
        found.append(pair)
    return found[::-1]
