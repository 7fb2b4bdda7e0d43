"""What models gave in eval mode, within rounding: kept outputs row by row, of all outputs the mean and the root mean square."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ..execution.observations import EvalCall, Observations
from .deviation import deviations
from .findings import Finding, Kind, note, told_apart
from .padded import padding_left, without_padding
from .rebatched import Place, cut_like, rebatched, shuffled
from .tolerance import Precision, allowed, times_beyond
from .vectors import Quantity, judge

if TYPE_CHECKING:
    from .deviation import Tensors


@dataclass(frozen=True)
class EvaluationComparison:
    """What was found; ``unseen`` tells of evaluations of which nothing could be compared, None where there are none."""

    findings: tuple[Finding, ...]
    unseen: str | None


_Output: TypeAlias = "tuple[Place, int]"
"""What a module gives at one position of its outputs, in one evaluation."""


@dataclass(frozen=True)
class _Runs:
    """``of_batches`` are outputs that belong to a batch, not to its samples, where the runs' batches are not the same; ``filled`` the
    evaluations of whose padding only the original tells."""

    original: Observations
    other: Observations
    neighbours: Sequence[Observations]
    precision: Precision
    of_batches: Collection[_Output]
    filled: frozenset[Place]


def compare_evaluations(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision,
) -> EvaluationComparison:
    """What ``other``'s models give where they are evaluated against ``original``'s, however that is batched."""
    of_batches, filled = _of_batches(original, other), padding_left(original, other)
    runs = _Runs(original, other, neighbours, precision, of_batches, filled)
    kept = rebatched(original, other)
    seen = {original.eval_calls[_call_of(name)].module for name in kept}
    padded = _padded(runs)
    findings = [
        *_kept_outputs(runs, kept),
        *_summaries(runs, {*padded, *filled}),
        *_left_out(runs),
        *_in_another_order(runs),
    ]
    unseen = {place: "has other shapes (are batches padded otherwise?)" for place in padded}
    unseen.update(dict.fromkeys(sorted(filled), "holds what is padding in the original"))
    unseen.update(dict.fromkeys(_other_means(runs), "is of a whole batch, and batches differ"))
    first = next((place for place in unseen if place[0] not in seen), None)
    if first is None:
        return EvaluationComparison(tuple(findings), None)
    module, rounds = first
    message = (
        f"what {module} gives where it is evaluated after round {rounds} {unseen[first]}, "
        "so only what is made of it was compared"
    )
    return EvaluationComparison(tuple(findings), message)


def _of_batches(original: Observations, other: Observations) -> frozenset[_Output]:
    """Outputs of one shape however many samples go in, a loss say, where ``other`` evaluates in other batches."""
    cuts: list[dict[Place, list[int]]] = [defaultdict(list), defaultdict(list)]
    samples: dict[tuple[_Output, tuple[int, ...]], set[int]] = defaultdict(set)
    for cut, run in zip(cuts, (original, other), strict=True):
        for call in run.eval_calls:
            place = call.module, call.rounds
            cut[place].append(call.samples)
            for position, output in enumerate(call.outputs):
                if math.prod(output.shape):  # of nothing that was found there may be any number
                    samples[(place, position), output.shape].add(call.samples)
    ours, theirs = cuts
    return frozenset(
        output
        for (output, _), known in samples.items()
        if len(known) > 1 and ours.get(output[0]) != theirs.get(output[0])
    )


def _left_out(runs: _Runs) -> Iterator[Finding]:
    """That what a module gives for a whole batch is not compared."""
    for module, rounds in sorted({place for place, _ in runs.of_batches}):
        message = (
            f"what {module} gives for a whole batch, evaluated after round {rounds}, is not compared: "
            "it is given other batches"
        )
        yield note(Kind.EVALUATION_OUTPUT, message, step=rounds + 1, tensor=module)
        return


def _other_means(runs: _Runs) -> Iterator[Place]:
    """Evaluations that give nothing but such outputs, of which not even the mean over all samples is the same.

    It is where an output is itself a mean over the samples of its batch.
    """
    ours, theirs, *near = (
        _moments(run.eval_calls, frozenset[_Output](), by_samples=True)
        for run in (runs.original, runs.other, *runs.neighbours)
    )
    besides = _moments(runs.original.eval_calls, runs.of_batches)
    for place in sorted({place for place, _ in runs.of_batches}):
        if besides[place].count or place not in theirs:
            continue
        before = ours[place]
        distances = (abs(run[place].mean - before.mean) for run in near if place in run)
        limit = allowed(distances, before.root_mean_square, runs.precision)
        if abs(theirs[place].mean - before.mean) > limit:
            yield place


def _kept_outputs(runs: _Runs, theirs: Tensors) -> list[Finding]:
    def compared(outputs: Tensors) -> Tensors:
        return without_padding(outputs, runs.original, runs.filled)

    ours = compared(cut_like(runs.original.eval_outputs(), theirs))
    near = [
        deviations(ours, compared(cut_like(run.eval_outputs(), theirs))) for run in runs.neighbours
    ]
    quantity = Quantity(
        Kind.EVALUATION_OUTPUT,
        "evaluation output",
        lambda name: f"call {_call_of(name) + 1}",
    )
    findings, _ = judge(quantity, deviations(ours, compared(theirs)), near, runs.precision)
    made = ((f, runs.original.eval_calls[_call_of(f.tensor or "0")]) for f in findings)
    return [replace(f, step=call.rounds + 1, tensor=call.module) for f, call in made]


def _in_another_order(runs: _Runs) -> Iterator[Finding]:
    """The models that are given the same samples in another order; what they give for each is compared."""
    for module in sorted({module for module, _ in shuffled(runs.original, runs.other)}):
        message = f"{module} evaluates the same samples in another order"
        yield note(Kind.SAMPLE_ORDER, message, tensor=module)


def _call_of(tensor: str) -> int:
    """The call in eval mode that gave ``tensor``, counted from 0: kept outputs are named ``call.position``."""
    return int(tensor.partition(".")[0])


@dataclass
class _Moments:
    """Of all outputs of one evaluation: number of elements, their sum and sum of squares, all finite."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    finite: bool = True

    @property
    def mean(self) -> float:
        return self.total / (self.count or 1)

    @property
    def root_mean_square(self) -> float:
        return math.sqrt(self.squares / (self.count or 1))


def _padded(runs: _Runs) -> list[Place]:
    """The evaluations whose outputs are as wide as a batch needs, and of other sizes in all in the other run."""
    ours, theirs = runs.original.eval_calls, runs.other.eval_calls
    sizes = [
        {place: m.count for place, m in _moments(calls, runs.of_batches).items()}
        for calls in (ours, theirs)
    ]
    wide = _as_wide_as_needed(ours) | _as_wide_as_needed(theirs)
    return [p for p, size in sizes[0].items() if p in wide and sizes[1].get(p, size) != size]


def _as_wide_as_needed(calls: Sequence[EvalCall]) -> set[Place]:
    """Where the rows that a module gives for a sample are not of the same shape in all calls."""
    shapes: dict[tuple[Place, int], set[tuple[int, ...]]] = defaultdict(set)
    for call in calls:
        for position, output in enumerate(call.outputs):
            shapes[(call.module, call.rounds), position].add(output.shape[1:])
    return {place for (place, _), known in shapes.items() if len(known) > 1}


def _summaries(runs: _Runs, padded: Container[Place]) -> Iterator[Finding]:
    """Mean and root mean square over all outputs of each evaluation, however it was batched; not of ``padded`` ones."""
    ours, theirs, *near = (
        _moments(run.eval_calls, runs.of_batches)
        for run in (runs.original, runs.other, *runs.neighbours)
    )
    for key, before in ours.items():
        after = theirs.get(key)
        if after is None:
            continue
        module, rounds = key
        if key in padded and after.finite:
            told = (
                "hold what is padding in the original, and is not compared"
                if key in runs.filled
                else "are of another size"
            )
            message = f"outputs of {module} evaluated after round {rounds} {told}"
            yield note(Kind.EVALUATION_OUTPUT, message, step=rounds + 1, tensor=module)
            continue
        where = f"of the outputs of {module} evaluated after round {rounds}"
        if before.finite and not after.finite:
            message = f"NaN or Inf in the outputs of {module} evaluated after round {rounds}"
            yield Finding(Kind.NON_FINITE, message, step=rounds + 1, tensor=module)
            return
        samples = [run[key] for run in near if key in run]
        for name in ("mean", "root_mean_square"):
            a, b = getattr(before, name), getattr(after, name)
            limit = allowed(
                (abs(getattr(s, name) - a) for s in samples),
                before.root_mean_square,
                runs.precision,
            )
            if abs(b - a) > limit:
                shown, expected = told_apart(b, a)
                message = f"{name.replace('_', ' ')} {where}: {shown}, not {expected} (allowed {limit:.2g})"
                yield Finding(
                    Kind.EVALUATION_OUTPUT,
                    message,
                    step=rounds + 1,
                    tensor=module,
                    original=a,
                    rewritten=b,
                    beyond=times_beyond(abs(b - a), limit),
                )
                return


def _moments(
    calls: Sequence[EvalCall], without: Container[_Output], *, by_samples: bool = False
) -> defaultdict[Place, _Moments]:
    """Of each evaluation; of outputs ``without`` only whether they are finite. ``by_samples``: a call counts as often."""
    moments: defaultdict[Place, _Moments] = defaultdict(_Moments)
    for call in calls:
        place = call.module, call.rounds
        times = call.samples if by_samples else 1
        for position, output in enumerate(call.outputs):
            found = moments[place]
            found.finite &= output.finite
            if (place, position) in without:
                continue
            size = math.prod(output.shape) * times
            found.count += size
            found.total += output.mean * size
            found.squares += output.norm**2 * times
    return moments
