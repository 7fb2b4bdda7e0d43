"""Standard output, compared with numbers as numbers.

A line is a skeleton (its words) and its numbers. Skeletons must agree line by line. Numbers that vary between two
runs of the original, or that carry a unit of time or memory, are not repeatable and are left out, which is told. A time
that those runs print alike to the last digit is no clock's: a network that predicts minutes is compared.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .findings import Finding, Kind, note
from .tolerance import Precision, allowed

_OPTIONS = re.compile(r"\bNamespace\((.*)\)")
"""Options as argparse prints them: what went into the run, not what came out. What they do is compared itself."""

_MASKS = (
    (_OPTIONS, "Namespace(<options>)"),
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r",? ?grad_fn=<[^>]*>"), ""),
    (re.compile(r", device='[^']*'"), ""),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<address>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<date>"),
    # not the 1:55.23 of R@1:55.23, nor the 10:62 of hit@10:62
    (re.compile(r"(?<![@\w])\d{1,2}:[0-5]\d(?::[0-5]\d)?(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"(?<![\w/.])(?:[A-Za-z]:)?(?:[\\/][\w.+@~-]+){2,}"), "<path>"),
)
"""What names no number and differs between runs that do the same; all replaced before lines are compared."""

_PROFILER_TABLE = re.compile(
    r"^-{3,}(?: +-{3,})+ *\n.*\bSelf CPU\b.*\n(?:.*\n)*?Self CPU time total:.*(?:\nSelf \w+ time total:.*)?",
    re.MULTILINE,
)
"""A table of PyTorch's profiler: what it measured, how often and in which order is another in every run."""

_BAR = re.compile(r"\d%\|.*\||[━╸╺]{3,}|\[[=#]*>?[.\- ]*\] .*(?:/s|/it|/step|ETA|<time>)")
"""A progress bar, as tqdm, rich and Keras draw them: when there is time to draw it, and what it says then, is another in every run."""

NUMBER = re.compile(
    r"(?<![A-Za-z_0-9.])([-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan\b|inf(?:inity)?\b))(?![0-9_])",
    re.IGNORECASE,
)
"""A number as it is printed."""
_UNIT_AFTER = re.compile(
    r"\s*(?:(?:s|secs?|seconds?|ms|msec|milliseconds?|us|µs|ns|mins|minutes?|h|hrs?|hours?|[KMGT]i?B)\b"
    # the minimum, where a number follows that is no seconds
    r"|min\b(?!\s*[:=]?\s*[-+]?\d[\d.]*(?![\d.])(?!\s*(?:s|secs?|seconds?)\b))"
    r"|\w+\s?/\s?(?:s|sec|second|min|minute|hour|h)\b|(?:s|ms|sec|seconds)\s?/\s?\w+)",
    re.IGNORECASE,
)
_QUANTITY_BEFORE = re.compile(
    r"(?:\b|_)(?:(?:run|wall)?time|times|elapsed|took|duration|latency|eta|speed|throughput|fps|per[_ ]sec(?:ond)?|secs?|seconds|ms"
    r"|memory|mem)"
    r"[^A-Za-z0-9]*(?:\([^)]*\)[^A-Za-z0-9]*)?$",
    re.IGNORECASE,
)


_MEMORY = re.compile(r"[KMGT]i?B|mem", re.IGNORECASE)
_NO_CHANCE = 3
"""So many digits are the same by chance once in a thousand times."""


StepsOf: TypeAlias = "tuple[Callable[[int], int | None] | None, Callable[[int], int | None] | None]"
"""What tells the step of a line of the original's text and of the rewrite's, by its number from 1."""
_Column: TypeAlias = tuple[str, int]
"""The numbers at one place of all lines with the same words."""


@dataclass(frozen=True)
class Line:
    """One line: its 1-based number, its words with ``#`` for numbers, the numbers, and which are times or memory.

    ``timed`` are those of ``measured`` that read like times, or like rates.
    """

    number: int
    text: str
    skeleton: str
    numbers: tuple[str, ...]
    measured: frozenset[int]
    timed: frozenset[int]


@dataclass(frozen=True)
class Unrepeatable:
    """What the original does not repeat: places of numbers per skeleton, and skeletons that come and go.

    ``repeated`` are places that read like times and are the same in all its runs.
    """

    places: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    skeletons: set[str] = field(default_factory=set[str])
    repeated: dict[str, set[int]] = field(default_factory=dict[str, set[int]])

    def leaves_out(self, line: Line, place: int) -> bool:
        """Whether the number at ``place`` of the original's ``line`` is another in every run."""
        if place in self.places.get(line.skeleton, ()):
            return True
        return place in line.measured and place not in self.repeated.get(line.skeleton, ())


def read_lines(text: str) -> list[Line]:
    """The non-empty lines of a program's output without progress bars; a carriage return starts a line too."""
    lines: list[Line] = []
    text = _PROFILER_TABLE.sub(lambda table: "\n" * table[0].count("\n"), text)
    for number, raw in enumerate(text.splitlines(), start=1):
        for mask, stand_in in _MASKS:
            raw = mask.sub(stand_in, raw)
        if raw.strip() and not _BAR.search(raw):
            lines.append(_line(number, " ".join(raw.split())))
    return lines


def _line(number: int, text: str) -> Line:
    matches = list(NUMBER.finditer(text))
    quantities = {
        place: (
            _UNIT_AFTER.match(text, match.end()),
            _QUANTITY_BEFORE.search(text[: match.start()]),
        )
        for place, match in enumerate(matches)
    }
    measured = frozenset(place for place, found in quantities.items() if any(found))
    memory = {
        place
        for place, found in quantities.items()
        if any(quantity and _MEMORY.search(quantity[0]) for quantity in found)
    }
    numbers = tuple(match.group(1) for match in matches)
    return Line(number, text, NUMBER.sub("#", text), numbers, measured, measured - memory)


def unrepeatable(original: Sequence[Line], repeats: Iterable[Sequence[Line]]) -> Unrepeatable:
    """What differs between runs of the original, and what would if it were measured by a clock."""
    found = Unrepeatable(defaultdict(set), set(), defaultdict(set))
    alike: dict[_Column, int] = defaultdict(int)
    for repeat in repeats:
        for ours, theirs in aligned(original, repeat):
            if ours is None or theirs is None:
                found.skeletons.update(line.skeleton for line in (ours, theirs) if line)
                continue
            for place, (a, b) in enumerate(zip(ours.numbers, theirs.numbers, strict=True)):
                if not _same_number(a, b):
                    found.places.setdefault(ours.skeleton, set()).add(place)
                elif place in ours.timed:
                    alike[ours.skeleton, place] += _chance_digits(a)
    for (skeleton, place), digits in alike.items():
        if digits >= _NO_CHANCE and place not in found.places.get(skeleton, ()):
            found.repeated[skeleton].add(place)
    return found


def _chance_digits(number: str) -> int:
    """How many digits of a fraction two readings of a clock share by chance only: all behind the second.

    Two runs of a script take the same time within some percent at best. Whole numbers may count seconds since 1970,
    which runs that start together share.
    """
    mantissa = number.lower().partition("e")[0].lstrip("+-")
    if "." not in mantissa:
        return 0
    return max(0, len(mantissa.replace(".", "").strip("0")) - 2)


def aligned(
    ours: Sequence[Line], theirs: Sequence[Line]
) -> Iterable[tuple[Line | None, Line | None]]:
    """Pairs of lines with the same skeleton, in order; None stands for a line that the other does not have.

    Where lines of one skeleton follow each other, such as those of epochs, the ones without a partner are those that
    leave the most others paired with their like.
    """
    matcher = difflib.SequenceMatcher(
        a=[line.skeleton for line in ours], b=[line.skeleton for line in theirs], autojunk=False
    )
    opcodes = matcher.get_opcodes()
    moved = 0
    for index, (tag, start, end, other_start, other_end) in enumerate(opcodes):
        if tag == "equal":
            yield from zip(
                ours[start + moved : end], theirs[other_start + moved : other_end], strict=True
            )
            moved = 0
            continue
        follows = opcodes[index + 1] if index + 1 < len(opcodes) else None
        same = ours[follows[1] : follows[2]] if follows else ours[:0]
        if tag == "insert":
            moved = _further(theirs[other_start:other_end], theirs[other_end:], same)
            yield from zip(same[:moved], theirs[other_start : other_start + moved], strict=True)
        elif tag == "delete":
            partners = theirs[follows[3] : follows[4]] if follows else theirs[:0]
            moved = _further(ours[start:end], ours[end:], partners)
            yield from zip(ours[start : start + moved], partners[:moved], strict=True)
        kept = 0 if tag == "insert" else moved
        yield from ((line, None) for line in ours[start + kept : end + kept])
        kept = 0 if tag == "delete" else moved
        yield from ((None, line) for line in theirs[other_start + kept : other_end + kept])


def _further(odd: Sequence[Line], after: Sequence[Line], partners: Sequence[Line]) -> int:
    """By how many lines ``odd``, a run without partners, is better off further down.

    The lines ``after`` it, which have ``partners``, then stand above it with the lines it begins with in their place.
    """
    lines = [*odd, *after]
    best = score = found = 0
    for index, partner in enumerate(partners):
        first, now = lines[index], lines[index + len(odd)]
        if first.skeleton != now.skeleton:
            break
        score += (first.numbers == partner.numbers) - (now.numbers == partner.numbers)
        if score >= best:
            best, found = score, index + 1
    return found


def _same_number(a: str, b: str) -> bool:
    x, y = float(a), float(b)
    return x == y or (math.isnan(x) and math.isnan(y))


def last_digit(number: str) -> float:
    """One unit in the last printed place: 0.01 for ``2.31``, 1e-5 for ``1.2e-4``, nothing for an integer.

    Integers are counts and indices, which rounding does not touch; where it does (a count of correct predictions, a
    loss without decimals), the perturbed runs, further off than the rewrite, show it.
    """
    mantissa, _, exponent = number.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    if not decimals and not exponent:
        return 0.0
    return 10.0 ** (int(exponent or 0) - decimals) if math.isfinite(float(number)) else 0.0


def compare_text(
    original: str,
    rewritten: str,
    repeats: Sequence[str] = (),
    neighbours: Sequence[str] = (),
    precision: Precision | None = None,
    step_of: StepsOf = (None, None),
) -> list[Finding]:
    """Differences in what was printed.

    ``repeats`` are outputs of other runs of the original, ``neighbours`` those of the original with perturbed
    parameters. Without ``precision`` numbers must be equal; with it they may differ as :func:`.tolerance.allowed`
    says, and by a unit in the last printed place. Only the first differing line and the first differing number are
    told. With a reduced precision a number beyond its tolerance is a note: what is printed may be a count of correct
    predictions, which rounding moves by whole samples; the values behind it are judged on their own.
    """
    ours, theirs = read_lines(original), read_lines(rewritten)
    left_out = unrepeatable(ours, [read_lines(text) for text in repeats])
    spreads = _spreads(ours, [read_lines(text) for text in neighbours]) if precision else {}
    findings = _options(original, rewritten) + _profiler_tables(original, rewritten)
    pairs = list(aligned(ours, theirs))
    limits = _limits(pairs, spreads, precision) if precision else {}
    skipped = 0
    for a, b in pairs:
        if a is None or b is None:
            line = a or b
            if line is None or line.skeleton in left_out.skeletons:
                continue
            where = step_of[0] if a is not None else step_of[1]
            findings.append(_at(_odd_line(a, b), line, where))
            break
        for place, (x, y) in enumerate(zip(a.numbers, b.numbers, strict=True)):
            if _same_number(x, y):
                continue
            if left_out.leaves_out(a, place):
                skipped += 1
            elif not _close(x, y, limits.get((a.number, place))):
                findings.append(_at(_odd_number(a, x, y, precision), a, step_of[0]))
    if skipped:
        findings.append(
            note(
                Kind.NOT_REPEATABLE,
                f"printed numbers that are timings, memory or vary between two runs of the original, not compared: {skipped}",
            )
        )
    return _first_of_each(findings)


def _options(original: str, rewritten: str) -> list[Finding]:
    """A note when printed options differ, such as a raised default of the number of workers."""
    ours, theirs = (_OPTIONS.findall(text) for text in (original, rewritten))
    for before, after in zip(ours, theirs, strict=False):
        if before != after:
            changed = [part for part in after.split(", ") if part not in before.split(", ")]
            return [note(Kind.STDOUT, f"other options are printed: {_cut(', '.join(changed))}")]
    return []


def _profiler_tables(original: str, rewritten: str) -> list[Finding]:
    """A note when a profiler's tables are printed more or less often."""
    before, after = (len(_PROFILER_TABLE.findall(text)) for text in (original, rewritten))
    if before == after:
        return []
    return [note(Kind.STDOUT, f"{after} tables of a profiler are printed instead of {before}")]


def _spreads(
    original: Sequence[Line], neighbours: Iterable[Sequence[Line]]
) -> dict[_Column, list[list[float]]]:
    """How far each neighbour lies from the original's numbers, per column: the furthest first."""
    spreads: dict[_Column, list[list[float]]] = defaultdict(list)
    for neighbour in neighbours:
        for column, distances in _distances(aligned(original, neighbour)).items():
            spreads[column].append(sorted(distances.values(), reverse=True))
    return spreads


def _distances(
    pairs: Iterable[tuple[Line | None, Line | None]],
) -> dict[_Column, dict[int, float]]:
    """How far numbers lie apart, per column and by the number of the line."""
    found: dict[_Column, dict[int, float]] = defaultdict(dict)
    for a, b in pairs:
        if a and b:
            for place, (x, y) in enumerate(zip(a.numbers, b.numbers, strict=True)):
                distance = abs(float(x) - float(y))
                known = math.isfinite(distance)
                found[a.skeleton, place][a.number] = distance if known else math.inf
    return found


def _limits(
    pairs: Sequence[tuple[Line | None, Line | None]],
    spreads: Mapping[_Column, Sequence[Sequence[float]]],
    precision: Precision,
) -> dict[tuple[int, int], float]:
    """How far each number may be off, by the number of its line and its place there.

    Rounding takes some lines of a column far and leaves most alone, others in each run. So the rewrite's distances are
    held against a neighbour's by rank, its furthest against the furthest, wherever these are; a value that is off in
    every line is not excused by one line that rounding moves. What can only move by whole samples, such as an accuracy,
    moves by the smallest distance of any neighbour at least, and that may happen in more lines.
    """
    limits: dict[tuple[int, int], float] = {}
    numbers = {a.number: a.numbers for a, b in pairs if a and b}
    for column, distances in _distances(pairs).items():
        near = spreads.get(column, ())
        least = min((d for one in near for d in one if d), default=0.0)
        ranked = sorted(distances, key=lambda number: -distances[number])
        for rank, number in enumerate(ranked):
            furthest = [one[rank] for one in near if rank < len(one)]
            value = float(numbers[number][column[1]])
            limits[number, column[1]] = allowed((least, *furthest), value, precision)
    return limits


def _close(x: str, y: str, limit: float | None) -> bool:
    a, b = float(x), float(y)
    if limit is None or not (math.isfinite(a) and math.isfinite(b)):
        return False
    return abs(a - b) <= limit + max(last_digit(x), last_digit(y)) * 1.001


def _at(finding: Finding, line: Line, step_of: Callable[[int], int | None] | None) -> Finding:
    return replace(finding, step=step_of(line.number)) if step_of else finding


def _odd_line(ours: Line | None, theirs: Line | None) -> Finding:
    if ours is None:
        assert theirs is not None
        return Finding(
            Kind.STDOUT,
            f"line {theirs.number} of the output is not in the original's: {_cut(theirs.text)}",
            rewritten=theirs.text,
        )
    return Finding(
        Kind.STDOUT,
        f"line {ours.number} of the original's output is missing or reads otherwise: {_cut(ours.text)}",
        original=ours.text,
    )


def _odd_number(line: Line, x: str, y: str, precision: Precision | None) -> Finding:
    message = f"line {line.number} of the output has {y}, not {x}: {_cut(line.text)}"
    finite = math.isfinite(float(x)) == math.isfinite(float(y))
    if precision is not None and precision.reduced and finite:
        return note(Kind.STDOUT, message)
    return Finding(Kind.STDOUT, message, original=x, rewritten=y)


def _cut(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _first_of_each(findings: Iterable[Finding]) -> list[Finding]:
    first: dict[tuple[Kind, bool], Finding] = {}
    for finding in findings:
        first.setdefault((finding.kind, finding.fails), finding)
    return list(first.values())
