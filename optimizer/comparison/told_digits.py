"""Numbers that are printed otherwise though all is trained and evaluated bit for bit the same, by the digits that were not printed.

Such a number may be off by a unit of its last printed digit, since a rounding may take it over the edge between two of them. That
is much more than a rounding: of ``1.5944`` it is 6e-5, four times what the longest sum may be off by. So both versions are run
once more with more digits printed, where those that are printed otherwise have to be as near as rounding keeps them.

What rounding is to such a number hangs on what it was summed up from: a mean of numbers that cancel each other is off by the rounding of
these, the mean of small losses by that of the losses, however large the scores are that they were computed from. Where it comes from an
evaluation, that shows in the original with parameters perturbed for its evaluations: they move what was summed up by a rounding or more,
and the number with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..execution.observations import ENDED_WELL, Observations
from .findings import Finding, Kind
from .lines import Line, aligned, read_lines
from .neighbours import Neighbours, Observe
from .repeating import unrepeatable
from .text import last_digit
from .tolerance import Precision, allowed, precision_of, times_beyond
from .verdict import Outcome, Verdict, failed_by


class _Told(NamedTuple):
    """A number that is printed otherwise, with more digits: its ``place`` in line ``row`` of the original's and in one of the rewrite's."""

    row: int
    place: int
    ours: Line
    theirs: Line


def judge_digits(
    verdict: Verdict,
    original: Observations,
    repeats: Sequence[Observations],
    rewritten: Observations,
    observe: Observe,
    perturbed_runs: int,
) -> Verdict:
    """``verdict``, that what is told is within rounding, unless the digits behind say that it is not.

    It stands where a version prints other lines with more digits: it may make something of what it prints. Of numbers that differ by
    more than they would be rounded by themselves, ``perturbed_runs`` runs tell how far rounding takes what they are made of, where they
    are those of an evaluation.
    """
    if verdict.outcome is not Outcome.EQUIVALENT or rewritten.ranks:
        return verdict
    pairs = _printed_otherwise(original, repeats, rewritten)
    if not pairs:
        return verdict
    ours, theirs = (
        _finer(run, observe(f"{name}, with more digits", original=first, more_digits=True))
        for run, name, first in ((original, "original", True), (rewritten, "rewritten", False))
    )
    if ours is None or theirs is None:
        return verdict
    precision, scale = precision_of(original, rewritten), _scale(original)
    told = [_Told(row, place, ours[row], theirs[after]) for row, after, place in pairs]
    found = _first_beyond(told, scale, precision)
    doubted = [one for one in told if _first_beyond([one], 0.0, precision) is not None]
    if found is None and doubted:
        evaluations = Neighbours(observe, precision, 0, evaluations=True, more_digits=True)
        runs = evaluations.perturbed(perturbed_runs)
        near = [moved for run in runs if (moved := _finer(original, run)) is not None]
        evaluated = [one for one in doubted if any(_moves(one, lines) for lines in near)]
        found = _first_beyond(evaluated, 0.0, precision, near)
    if found is None:
        return verdict
    one, finding = found
    return failed_by(verdict, replace(finding, step=original.step_of_line(one.ours.number)))


def _printed_otherwise(
    original: Observations, repeats: Sequence[Observations], rewritten: Observations
) -> list[tuple[int, int, int]]:
    """Numbers that are printed otherwise: the places of their lines in both outputs, and theirs in the line."""
    ours, theirs = read_lines(original.stdout), read_lines(rewritten.stdout)
    left_out = unrepeatable(ours, [read_lines(run.stdout) for run in repeats])
    before = {id(line): place for place, line in enumerate(ours)}
    after = {id(line): place for place, line in enumerate(theirs)}
    return [
        (before[id(a)], after[id(b)], place)
        for a, b in aligned(ours, theirs)
        if a is not None and b is not None
        for place, (x, y) in enumerate(zip(a.numbers, b.numbers, strict=True))
        if float(x) != float(y) and not left_out.leaves_out(a, place)
    ]


def _finer(run: Observations, finer: Observations) -> list[Line] | None:
    """The lines of ``run`` as they are ``finer`` told, None where they are others."""
    before, after = read_lines(run.stdout), read_lines(finer.stdout)
    same = [line.skeleton for line in before] == [line.skeleton for line in after]
    return after if same and finer.status in ENDED_WELL else None


def _scale(run: Observations) -> float:
    """The size of the largest loss, or number that was evaluated: what is told may be the difference of such numbers."""
    outputs: Iterator[float] = (out.largest for call in run.eval_calls for out in call.outputs)
    losses: Iterator[float] = (abs(loss.value) for step in run.steps for loss in step.losses)
    return max((*outputs, *losses), default=0.0)


def _moves(one: _Told, lines: Sequence[Line]) -> bool:
    return float(lines[one.row].numbers[one.place]) != float(one.ours.numbers[one.place])


def _first_beyond(
    told: Sequence[_Told],
    scale: float,
    precision: Precision,
    near: Sequence[Sequence[Line]] = (),
) -> tuple[_Told, Finding] | None:
    """The first of ``told`` that differs by more than rounding at its scale, or as far as it takes the neighbours, whose lines are ``near``."""
    for one in told:
        x, y = one.ours.numbers[one.place], one.theirs.numbers[one.place]
        spread = [abs(float(lines[one.row].numbers[one.place]) - float(x)) for lines in near]
        size = max(abs(float(x)), scale)
        limit = allowed(spread, size, precision) + max(last_digit(x), last_digit(y))
        beyond = times_beyond(abs(float(x) - float(y)), limit)
        if beyond > 1.0:
            shown = one.ours.text[:60]
            message = (
                f"with more digits, line {one.ours.number} of the output has {y}, not {x}: {shown}"
            )
            return one, Finding(Kind.STDOUT, message, original=x, rewritten=y, beyond=beyond)
    return None
