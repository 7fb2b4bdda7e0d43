"""Which of the numbers that a run prints the original repeats from run to run, and which are a clock's."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .lines import Line, aligned

_NO_CHANCE = 3
"""So many digits are the same by chance once in a thousand times."""

Column: TypeAlias = tuple[str, int]
"""The numbers at one place of all lines with the same words, or of those of them that stand in the same position."""
_Spot: TypeAlias = tuple[int, int]
"""A number: that of its line, and its place there."""


@dataclass(frozen=True)
class Unrepeatable:
    """What the original does not repeat: places of numbers per skeleton, and skeletons that come and go.

    ``repeated`` are places that read like times and are the same in all its runs. ``apart`` are numbers that are the same
    in all of them though lines with the same words are not: a loss that is printed without a word, as a time is before it.
    """

    places: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    skeletons: set[str] = field(default_factory=set[str])
    repeated: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    apart: dict[_Spot, Column] = field(default_factory=dict[_Spot, Column])

    def leaves_out(self, line: Line, place: int) -> bool:
        """Whether the number at ``place`` of the original's ``line`` is another in every run."""
        if place in self.places.get(line.skeleton, ()):
            return (line.number, place) not in self.apart
        return place in line.measured and place not in self.repeated.get(line.skeleton, ())

    def column(self, line: Line, place: int) -> Column:
        """The numbers that the one at ``place`` of the original's ``line`` is one of."""
        return self.apart.get((line.number, place), (line.skeleton, place))


def unrepeatable(
    original: Sequence[Line], repeats: Iterable[Sequence[Line]], *, clocks_alone: bool = True
) -> Unrepeatable:
    """What differs between runs of the original, and what would if it were measured by a clock.

    Unless ``clocks_alone`` differ, what is printed first may be the same because a training has not come apart yet.
    """
    found = Unrepeatable(defaultdict(set), set(), defaultdict(set))
    alike: dict[_Spot, int] = defaultdict(int)
    moved: set[_Spot] = set()
    for repeat in repeats:
        for ours, theirs in aligned(original, repeat):
            if ours is None or theirs is None:
                found.skeletons.update(line.skeleton for line in (ours, theirs) if line)
                continue
            for place, (a, b) in enumerate(zip(ours.numbers, theirs.numbers, strict=True)):
                if not same_number(a, b):
                    found.places.setdefault(ours.skeleton, set()).add(place)
                    moved.add((ours.number, place))
                else:
                    alike[ours.number, place] += _chance_digits(a)
    timed: dict[Column, int] = defaultdict(int)
    for line in original:
        for place in line.timed:
            timed[line.skeleton, place] += alike.get((line.number, place), 0)
    for (skeleton, place), digits in timed.items():
        if digits >= _NO_CHANCE and place not in found.places.get(skeleton, ()):
            found.repeated[skeleton].add(place)
    if moved and clocks_alone:
        found.apart.update(_apart(original, found.places, moved, alike))
    return found


def _apart(
    lines: Sequence[Line],
    places: Mapping[str, set[int]],
    moved: set[_Spot],
    alike: Mapping[_Spot, int],
) -> dict[_Spot, Column]:
    """Numbers of columns with others that move, which stand where all are the same in all runs, by more digits than chance has.

    The more positions there are, the more of them may be alike by chance: each takes a digit more for ten times as many.
    """
    standing: dict[Column, dict[str, set[_Spot]]] = defaultdict(lambda: defaultdict(set))
    for line, positions in _positions(lines):
        for place in places.get(line.skeleton, ()):
            for position in positions:
                standing[line.skeleton, place][position].add((line.number, place))
    return {
        spot: (f"{skeleton}\n{position}", place)
        for (skeleton, place), by_position in standing.items()
        for position, spots in by_position.items()
        if not spots & moved
        and sum(alike.get(spot, 0) for spot in spots) >= _NO_CHANCE + math.log10(len(by_position))
        for spot in spots
    }


def _positions(lines: Sequence[Line]) -> Iterable[tuple[Line, tuple[str, str]]]:
    """Each line with where it stands among those with the same words around it: the third behind ..., the last before ..."""
    groups = [list(group) for _, group in itertools.groupby(lines, key=lambda one: one.skeleton)]
    for at, group in enumerate(groups):
        before = groups[at - 1][0].skeleton if at else ""
        behind = groups[at + 1][0].skeleton if at + 1 < len(groups) else ""
        for place, line in enumerate(group):
            yield line, (f"{place} behind {before}", f"{len(group) - place} before {behind}")


def _chance_digits(number: str) -> int:
    """How many digits of a fraction two readings of a clock share by chance only: all behind the second.

    Two runs of a script take the same time within some percent at best. Whole numbers may count seconds since 1970,
    which runs that start together share.
    """
    mantissa = number.lower().partition("e")[0].lstrip("+-")
    if "." not in mantissa:
        return 0
    return max(0, len(mantissa.replace(".", "").strip("0")) - 2)


def same_number(a: str, b: str) -> bool:
    """Whether both are the same number, or none."""
    x, y = float(a), float(b)
    return x == y or (math.isnan(x) and math.isnan(y))
