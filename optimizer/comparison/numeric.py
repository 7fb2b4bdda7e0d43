"""The numeric tier: the rewrite stays as close to the original as rounding keeps the original to itself.

Every quantity is judged the same way (see :mod:`.tolerance`): its distance from the original's may be a stated
factor of the distances of the original's neighbours, plus the rounding of one layer. Neighbours are runs of the
original with its parameters perturbed by the type's epsilon and, where it does not repeat itself, repeated runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..execution.observations import Observations, Step
from .cancelled import cancelled, compare_cancelled
from .clipped_norms import compare_clipped_norms
from .deviation import change_deviations, deviations, undetermined
from .evaluated import compare_evaluations
from .exact import initial_parameter
from .figures import StepFigures, VectorFigures
from .findings import Finding, Kind, note, step_number
from .initial_values import started_otherwise
from .kept_state import compare_state_numbers
from .series import compare_series, step_figures, update_norm
from .tolerance import Precision, allowed
from .vectors import Deviations, Quantity, judge

if TYPE_CHECKING:
    from .arrays import Arrays


@dataclass(frozen=True)
class NumericComparison:
    """What was found, and the figures it rests on; ``unseen`` says what could not be compared."""

    findings: tuple[Finding, ...]
    steps: tuple[StepFigures, ...]
    vectors: tuple[VectorFigures, ...]
    unseen: str | None = None


@dataclass(frozen=True)
class _Runs:
    original: Observations
    other: Observations
    neighbours: Sequence[Observations]
    precision: Precision


def compare_numbers(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision,
) -> NumericComparison:
    """Losses, gradients, parameters, buffers and evaluation outputs of ``other`` against ``original``'s."""
    runs = _Runs(original, other, neighbours, precision)
    unknown, ignored = _undetermined(runs), rounding_only(original, precision)
    sums = cancelled(original, precision)
    findings = [
        *_initial_parameters(runs),
        *compare_series(original, other, neighbours, precision, unknown, ignored),
        *compare_clipped_norms(original, other, neighbours, precision),
    ]
    vectors: list[VectorFigures] = []
    for found, figures in (_gradients(runs, sums), *_updates(runs, unknown, ignored)):
        findings.extend(found)
        vectors.extend(figures)
    findings.extend(_buffers(runs))
    evaluated = compare_evaluations(original, other, neighbours, precision)
    findings.extend(evaluated.findings)
    findings.extend(
        compare_state_numbers(original, other, neighbours, precision, ignored & sums.keys())
    )
    return NumericComparison(
        tuple(_first_of_each(findings)),
        step_figures(original, other, neighbours, precision),
        tuple(vectors),
        evaluated.unseen,
    )


def _initial_parameters(runs: _Runs) -> Iterator[Finding]:
    """The first parameter of both that starts otherwise by more than rounding."""
    for name in started_otherwise(runs.original, runs.other):
        snapshots = runs.original.snapshot(0), runs.other.snapshot(0)
        if all(snapshot and name in snapshot.hashes for snapshot in snapshots):
            yield initial_parameter(runs.original, runs.other, name)
            return


def _group_of(runs: _Runs) -> dict[str, str]:
    """The optimizer of each parameter, the first where several have it."""
    return {
        name: f"optimizer {index}"
        for index, optimizer in reversed(list(enumerate(runs.original.optimizers)))
        for group in optimizer.groups
        for name in group
    }


def _gradients(
    runs: _Runs, sums: Mapping[str, tuple[float, int]]
) -> tuple[list[Finding], list[VectorFigures]]:
    """The first gradient of each optimizer's parameters; ``sums`` are those of which nothing but rounding is left."""
    if any(step.skipped for run in (runs.original, runs.other) for step in _first_steps(run)):
        return [], []
    groups = _group_of(runs)
    ours = runs.original.gradients()
    quantity = Quantity(
        Kind.GRADIENT,
        "gradient of the first step",
        lambda name: groups.get(name, "no optimizer"),
        ignored=frozenset(sums),
    )
    near = [deviations(ours, run.gradients()) for run in runs.neighbours]
    theirs = deviations(ours, runs.other.gradients())
    found, figures = judge(quantity, theirs, near, runs.precision)
    found += compare_cancelled(sums, theirs, near, runs.precision)
    # An optimizer that is built later, for another fold or phase, takes its first step later.
    first = {f"optimizer {s.optimizer}": step_number(s) for s in _first_steps(runs.original)}
    return (
        [replace(f, step=first.get(groups.get(f.tensor or "", ""), 1)) for f in found],
        [replace(figure, round=first.get(figure.group, 1)) for figure in figures],
    )


def _first_steps(run: Observations) -> list[Step]:
    first: dict[int, Step] = {}
    for step in run.steps:
        first.setdefault(step.optimizer, step)
    return list(first.values())


def _updates(
    runs: _Runs, unknown: Mapping[str, float], ignored: frozenset[str]
) -> Iterator[tuple[list[Finding], list[VectorFigures]]]:
    """How far the parameters have moved since the start, at every snapshot; ends at the first that fails.

    Adam and its kin make full-sized steps of a gradient that is nothing but rounding; such parameters are ``ignored``.
    """
    groups = _group_of(runs)
    for snapshot in runs.original.snapshots:
        if snapshot.round == 0:
            continue
        ways = [_way(runs.original, run, snapshot.round) for run in (runs.other, *runs.neighbours)]
        other, near = ways[0], [way for way in ways[1:] if way is not None]
        if other is None:
            continue
        quantity = Quantity(
            Kind.UPDATE if snapshot.round == 1 else Kind.PARAMETER,
            f"movement of the parameters up to step {snapshot.round}",
            lambda name: groups.get(name, "no optimizer"),
            step=snapshot.round,
            round=snapshot.round,
            slack=_slack(runs, snapshot.round),
            tensor_slack={name: 2 * length * snapshot.round for name, length in unknown.items()},
            ignored=ignored,
        )
        result = judge(quantity, other, near, runs.precision)
        yield result
        if result[0]:
            return


def _way(original: Observations, other: Observations, after_round: int) -> Deviations | None:
    pairs = [(run.snapshot(0), run.snapshot(after_round)) for run in (original, other)]
    tensors = [
        run.tensors(s) if s else None
        for run, pair in zip((original, other), pairs, strict=True)
        for s in pair
    ]
    if any(t is None for t in tensors):
        return None
    before, after, other_before, other_after = [t for t in tensors if t is not None]
    return change_deviations(before, after, other_before, other_after)


def _undetermined(runs: _Runs) -> dict[str, float]:
    """How far the first step moves the elements of each parameter whose gradient's sign rounding decides.

    In the rewrite they may move the other way, so the difference is twice that; the same again in every later step. Of a gradient that
    is below the rounding of its optimizer's gradients all elements are such, zeros as well.
    """
    start, end = runs.original.snapshot(0), runs.original.snapshot(1)
    before = runs.original.tensors(start) if start else None
    after = runs.original.tensors(end) if end else None
    if before is None or after is None:
        return {}
    gradients = runs.original.gradients()
    near = [deviations(gradients, run.gradients()) for run in runs.neighbours]
    own = deviations(gradients, gradients)
    floors = {
        name: runs.precision.relative_error * step.grad_norm
        for step in _first_steps(runs.original)
        for name in step.parameters
    }
    return {
        name: undetermined(
            gradient,
            before[name],
            after[name],
            allowed(
                (run[name].distance for run in near if name in run),
                own[name].norm,
                runs.precision,
            )
            if own[name].norm > floors.get(name, 0.0)
            else math.inf,
        )
        for name, gradient in gradients.items()
        if name in before and name in after
    }


def rounding_only(original: Observations, precision: Precision) -> frozenset[str]:
    """Parameters whose gradient is below the rounding of their optimizer's gradients in every step.

    One that is so in the first step alone is trained: the first of two factors, where the second starts from zeros.
    """
    only: set[str] = set()
    trained: set[str] = set()
    for step in original.steps:
        floor = precision.relative_error * step.grad_norm
        for name, update in step.parameters.items():
            (only if (update.grad_norm or 0.0) <= floor else trained).add(name)
    return frozenset(only - trained)


def _slack(runs: _Runs, after_round: int) -> dict[str, float]:
    """What the original moved in steps that a GradScaler skipped in only one of the runs, per optimizer.

    Twice that, since momentum carries a step on.
    """
    slack: dict[str, float] = defaultdict(float)
    for ours, theirs in zip(runs.original.steps, runs.other.steps, strict=False):
        if ours.skipped != theirs.skipped and ours.round <= after_round:
            moved = theirs if ours.skipped else ours
            slack[f"optimizer {ours.optimizer}"] += 2 * update_norm(moved)
    return slack


def _buffers(runs: _Runs) -> list[Finding]:
    """Floating-point buffers after the first round, before rounding has scattered the training, and at its end."""
    every = (runs.original, runs.other, *runs.neighbours)
    last = runs.original.rounds
    ours, theirs, *near = (run.buffers() for run in every)
    # A round ends where the next begins to step: what its forward pass makes of the buffers is in them.
    found = _buffers_at(min(2, last), runs.precision, *(run.first_buffers() for run in every))
    found = found or _buffers_at(last, runs.precision, ours, theirs, *near)
    for name, tensor in sorted(ours.items()):
        if name not in theirs:
            # Saved, it is missed in the checkpoint; used, in what is computed; a mask that attention has built in is neither.
            message = "is not among the models' buffers any more"
            found.append(note(Kind.BUFFER, message, tensor=name))
        elif tensor.dtype.kind != "f":
            bits = tensor.tobytes()
            same = theirs[name].tobytes() == bits
            if not same and all(n[name].tobytes() == bits for n in near if name in n):
                message = "counter differs at the end of the run"
                found.append(Finding(Kind.BUFFER, message, step=last, tensor=name))
    return found


def _buffers_at(
    step: int, precision: Precision, ours: Arrays, theirs: Arrays, *near: Arrays
) -> list[Finding]:
    """Floating-point buffers as vectors, as they are at ``step``."""
    counters = frozenset(name for name, tensor in ours.items() if tensor.dtype.kind != "f")
    quantity = Quantity(
        Kind.BUFFER,
        "buffers",
        lambda name: name.rpartition(".")[2],
        step=step,
        round=step,
        ignored=counters,
    )
    return judge(
        quantity, deviations(ours, theirs), [deviations(ours, n) for n in near], precision
    )[0]


def _first_of_each(findings: Sequence[Finding]) -> list[Finding]:
    """At most one failure and one note per kind: the first in the order of the run."""
    first: dict[tuple[Kind, bool], Finding] = {}
    for finding in findings:
        known = first.get((finding.kind, finding.fails))
        if known is None or (finding.step or 0) < (known.step or 0):
            first[finding.kind, finding.fails] = finding
    return list(first.values())
