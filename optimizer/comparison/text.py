"""Standard output, compared with numbers as numbers.

A line is a skeleton (its words) and its numbers. Skeletons must agree line by line. Numbers that vary between two
runs of the original, or that carry a unit of time or memory, are not repeatable and are left out, which is told. A time
that those runs print alike to the last digit is no clock's: a network that predicts minutes is compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from .findings import Finding, Kind, note
from .lines import (
    NUMBER,
    OPTIONS,
    PROFILER_TABLE,
    Line,
    Pairs,
    aligned,
    names_of_a_run,
    read_lines,
    stretches,
    without_names_of_a_run,
)
from .repeating import Column, Unrepeatable, same_number, unrepeatable
from .tolerance import Precision, allowed, times_beyond

StepsOf: TypeAlias = "tuple[Callable[[int], int | None] | None, Callable[[int], int | None] | None]"
"""What tells the step of a line of the original's text and of the rewrite's, by its number from 1."""


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
    says, and by a unit in the last printed place of the one with more of them. Only the first differing line and number are
    told. With a reduced precision a number beyond its tolerance is a note: what is printed may be a count of correct
    predictions, which rounding moves by whole samples; the values behind it are judged on their own. So are words that
    the neighbours change as well: what a network writes is another text when it is rounded otherwise.
    """
    if original == rewritten:  # as are the data that a script makes for itself, which may be long
        return []
    again = [read_lines(text) for text in repeats]
    names = names_of_a_run(read_lines(original), again)
    ours, theirs, *again = (
        without_names_of_a_run(lines, names)
        for lines in (read_lines(original), read_lines(rewritten), *again)
    )
    repeats_itself = not set(repeats) & set(neighbours)
    left_out = unrepeatable(ours, again, clocks_alone=repeats_itself)
    around = [without_names_of_a_run(read_lines(text), names) for text in neighbours if precision]
    near = [list(aligned(ours, lines)) for lines in around]
    findings = _options(original, rewritten) + _profiler_tables(original, rewritten)
    pairs = list(aligned(ours, theirs))
    limits = _limits(pairs, _spreads(near, left_out), left_out, precision) if precision else {}
    rounded = _rounded_words(pairs, near, precision)
    if rounded:
        findings.append(_words_apart(rounded[0]))
    not_compared = set(rounded)
    skipped = 0
    for a, b in pairs:
        if a is None or b is None:
            line = a or b
            if line is None or line in not_compared or line.skeleton in left_out.skeletons:
                continue
            where = step_of[0] if a is not None else step_of[1]
            findings.append(_at(_odd_line(a, b), line, where))
            break
        for place, (x, y) in enumerate(zip(a.numbers, b.numbers, strict=True)):
            if same_number(x, y):
                continue
            if left_out.leaves_out(a, place):
                skipped += 1
            elif (beyond := _times_beyond(x, y, limits.get((a.number, place)))) > 1.0:
                odd = _odd_number(a, place, y, precision, beyond)
                findings.append(_at(odd, a, step_of[0]))
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
    ours, theirs = (OPTIONS.findall(text) for text in (original, rewritten))
    for before, after in zip(ours, theirs, strict=False):
        if before != after:
            changed = [part for part in after.split(", ") if part not in before.split(", ")]
            return [note(Kind.STDOUT, f"other options are printed: {_cut(', '.join(changed))}")]
    return []


def _profiler_tables(original: str, rewritten: str) -> list[Finding]:
    """A note when a profiler's tables are printed more or less often."""
    before, after = (len(PROFILER_TABLE.findall(text)) for text in (original, rewritten))
    if before == after:
        return []
    return [note(Kind.STDOUT, f"{after} tables of a profiler are printed instead of {before}")]


def _rounded_words(
    pairs: Pairs, neighbours: Sequence[Pairs], precision: Precision | None
) -> list[Line]:
    """Lines without partners where neighbours change the words in the same way, anywhere with a reduced precision."""
    anywhere = precision is not None and precision.reduced
    near = [stretch for one in neighbours for stretch in stretches(one)]
    return [
        line
        for odd in stretches(pairs)
        if any(odd.is_like(one) and (anywhere or odd.touches(one)) for one in near)
        for line in (*odd.lost, *odd.added)
    ]


def _words_apart(first: Line) -> Finding:
    why = "as lines of the original do where it is rounded otherwise"
    return note(
        Kind.STDOUT, f"line {first.number} reads otherwise, {why}; not compared: {_cut(first.text)}"
    )


def _spreads(
    neighbours: Iterable[Pairs], left_out: Unrepeatable
) -> dict[Column, list[list[float]]]:
    """How far each neighbour lies from the original's numbers, per column: the furthest first."""
    spreads: dict[Column, list[list[float]]] = defaultdict(list)
    for pairs in neighbours:
        for column, distances in _distances(pairs, left_out).items():
            spreads[column].append(sorted(distances.values(), reverse=True))
    return spreads


def _distances(pairs: Pairs, left_out: Unrepeatable) -> dict[Column, dict[int, float]]:
    """How far numbers lie apart, per column and by the number of the line."""
    found: dict[Column, dict[int, float]] = defaultdict(dict)
    for a, b in pairs:
        if a and b:
            for place, (x, y) in enumerate(zip(a.numbers, b.numbers, strict=True)):
                # Two NaNs, as where nothing is evaluated yet, are no distance apart: the rest of the column has limits.
                distance = 0.0 if same_number(x, y) else abs(float(x) - float(y))
                known = math.isfinite(distance)
                found[left_out.column(a, place)][a.number] = distance if known else math.inf
    return found


def _limits(
    pairs: Pairs,
    spreads: Mapping[Column, Sequence[Sequence[float]]],
    left_out: Unrepeatable,
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
    for column, distances in _distances(pairs, left_out).items():
        near = spreads.get(column, ())
        least = min((d for one in near for d in one if d), default=0.0)
        ranked = sorted(distances, key=lambda number: -distances[number])
        for rank, number in enumerate(ranked):
            furthest = [one[rank] for one in near if rank < len(one)]
            value = float(numbers[number][column[1]])
            limits[number, column[1]] = allowed((least, *furthest), value, precision)
    return limits


def _times_beyond(x: str, y: str, limit: float | None) -> float:
    a, b = float(x), float(y)
    if limit is None or not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    # Of numbers with unequally many decimals it is that of the finer: what is rounded otherwise is told otherwise.
    units = [unit for unit in (last_digit(x), last_digit(y)) if unit]
    return times_beyond(abs(a - b), limit + min(units, default=0.0) * 1.001)


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


def _odd_number(
    line: Line, place: int, y: str, precision: Precision | None, beyond: float
) -> Finding:
    x = line.numbers[place]
    message = f"line {line.number} of the output has {y}, not {x}: {_around(line, place)}"
    finite = math.isfinite(float(x)) == math.isfinite(float(y))
    if precision is not None and precision.reduced and finite:
        return note(Kind.STDOUT, message)
    return Finding(Kind.STDOUT, message, original=x, rewritten=y, beyond=beyond)


def _around(line: Line, place: int, width: int = 60) -> str:
    """The line, or of a long one what stands before the number at ``place``, and the number: a whole JSON file may be one line."""
    number = list(NUMBER.finditer(line.text))[place]
    if number.end() <= width - 3:
        return _cut(line.text, width)
    start, more = max(0, number.end() - width + 6), "..." if number.end() < len(line.text) else ""
    return f"...{line.text[start : number.end()]}{more}"


def _cut(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _first_of_each(findings: Iterable[Finding]) -> list[Finding]:
    first: dict[tuple[Kind, bool], Finding] = {}
    for finding in findings:
        first.setdefault((finding.kind, finding.fails), finding)
    return list(first.values())
