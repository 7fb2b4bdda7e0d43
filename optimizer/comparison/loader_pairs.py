"""Which loader of a rewrite is which of the original's: they are numbered in the order of first use, which need not be the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import count

from ..execution.observations import LoaderPass, Observations


def loader_numbers(original: Observations, other: Observations) -> Mapping[int, int]:
    """For each loader of ``other`` the number that its counterpart has in ``original``.

    That is the one whose first pass read the same, where there is just one in either version: a loader may be read earlier than
    it was. The others are in the order of first use, but where some loaders are in one version only.
    """
    ours, theirs = (_first_passes(run) for run in (original, other))
    numbers = _same_first(ours, theirs)
    for loader, counterpart in numbers.items():
        del theirs[loader], ours[counterpart]
    if len(ours) == len(theirs):
        return numbers | dict(zip(theirs, ours, strict=True))
    before, after = ([_first_told(one) for one in known.values()] for known in (ours, theirs))
    matcher = SequenceMatcher(a=before, b=after, autojunk=False)
    every = (one.loader for run in (original, other) for one in run.loader_passes)
    free = count(max(every, default=0) + 1)
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        known = [*ours][start:end] if tag in ("equal", "replace") else []
        for place, loader in enumerate([*theirs][other_start:other_end]):
            numbers[loader] = known[place] if place < len(known) else next(free)
    return numbers


def read_in_turns(
    original: Observations, other: Observations, number: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """As which loader's pass of the original to tell passes of ``other``, where it reads by two loaders in turns what the original reads by one.

    Loaders over the same data that differ in nothing count as one. Two that are shuffled in the original, and only one of them in the rewrite, no longer do.
    """
    ours = by_loader(original, {one.loader: one.loader for one in original.loader_passes})
    theirs = by_loader(other, number)
    told: dict[int, tuple[int, int]] = {}
    for added in theirs.keys() - ours.keys():
        for loader, known in ours.items():
            both = [p for p in other.loader_passes if number[p.loader] in (loader, added)]
            if theirs.get(loader) and _taken(both) == _taken(known):
                pairs = zip(both, known, strict=True)
                told.update({id(one): (loader, before.epoch) for one, before in pairs})
    return told


def by_loader(run: Observations, number: Mapping[int, int]) -> dict[int, list[LoaderPass]]:
    passes: dict[int, list[LoaderPass]] = defaultdict(list)
    for one in run.loader_passes:
        passes[number[one.loader]].append(one)
    return dict(passes)


def _taken(passes: Sequence[LoaderPass]) -> list[tuple[int, int, bool]]:
    """When each was read, how many samples, and whether steps were made of them."""
    return [(one.rounds, one.samples, bool(one.steps)) for one in passes]


def _first_passes(run: Observations) -> dict[int, LoaderPass]:
    """Of each loader, in the order of first use."""
    first: dict[int, LoaderPass] = {}
    for one in run.loader_passes:
        first.setdefault(one.loader, one)
    return first


def _first_told(first: LoaderPass) -> tuple[int, int, str]:
    """What tells loaders apart: when the first pass was, how many samples it read, and which."""
    return first.rounds, first.samples, first.order[-1].contents if first.order else ""


def _same_first(ours: Mapping[int, LoaderPass], theirs: Mapping[int, LoaderPass]) -> dict[int, int]:
    """The loaders whose first passes read the same samples in the same order, as no other's did."""
    known: list[dict[tuple[int, str, str], int]] = []
    for passes in (ours, theirs):
        read = {loader: _sequence(first) for loader, first in passes.items()}
        often = Counter(read.values())
        known.append({what: loader for loader, what in read.items() if often[what] == 1})
    return {loader: known[0][what] for what, loader in known[1].items() if what in known[0]}


def _sequence(one: LoaderPass) -> tuple[int, str, str]:
    """What a pass read, in its order."""
    last = one.order[-1] if one.order else None
    return (one.samples, last.order, last.contents) if last else (one.samples, "", "")
