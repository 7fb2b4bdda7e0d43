"""What models gave in eval mode, within rounding: kept outputs row by row, of all outputs the mean and the root mean square."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..execution.observations import EvalCall, Observations
from .deviation import deviations
from .findings import Finding, Kind, note, told_apart
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


@dataclass(frozen=True)
class _Runs:
    original: Observations
    other: Observations
    neighbours: Sequence[Observations]
    precision: Precision


def compare_evaluations(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision,
) -> EvaluationComparison:
    """What ``other``'s models give where they are evaluated against ``original``'s, however that is batched."""
    runs = _Runs(original, other, neighbours, precision)
    kept = rebatched(original, other)
    seen = {original.eval_calls[_call_of(name)].module for name in kept}
    padded = _padded(original, other)
    findings = [*_kept_outputs(runs, kept), *_summaries(runs, padded), *_in_another_order(runs)]
    unseen = next((place for place in padded if place[0] not in seen), None)
    if unseen is None:
        return EvaluationComparison(tuple(findings), None)
    module, rounds = unseen
    message = (
        f"what {module} gives where it is evaluated after round {rounds} has other shapes "
        "(are batches padded otherwise?), so only what is made of it was compared"
    )
    return EvaluationComparison(tuple(findings), message)


def _kept_outputs(runs: _Runs, theirs: Tensors) -> list[Finding]:
    ours = cut_like(runs.original.eval_outputs(), theirs)
    near = [deviations(ours, cut_like(run.eval_outputs(), theirs)) for run in runs.neighbours]
    quantity = Quantity(
        Kind.EVALUATION_OUTPUT,
        "evaluation output",
        lambda name: f"call {_call_of(name) + 1}",
    )
    findings, _ = judge(quantity, deviations(ours, theirs), near, runs.precision)
    calls = runs.original.eval_calls
    return [replace(f, step=calls[_call_of(f.tensor or "0")].rounds + 1) for f in findings]


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


def _padded(original: Observations, other: Observations) -> list[Place]:
    """The evaluations whose outputs are as wide as a batch needs, and of other sizes in all in ``other``."""
    ours, theirs = original.eval_calls, other.eval_calls
    sizes = [{place: m.count for place, m in _moments(calls).items()} for calls in (ours, theirs)]
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
    ours, theirs = _moments(runs.original.eval_calls), _moments(runs.other.eval_calls)
    near = [_moments(run.eval_calls) for run in runs.neighbours]
    for key, before in ours.items():
        after = theirs.get(key)
        if after is None:
            continue
        module, rounds = key
        if key in padded and after.finite:
            message = f"outputs of {module} evaluated after round {rounds} are of another size"
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


def _moments(calls: Sequence[EvalCall]) -> dict[Place, _Moments]:
    moments: dict[Place, _Moments] = defaultdict(_Moments)
    for call in calls:
        for output in call.outputs:
            found = moments[call.module, call.rounds]
            size = math.prod(output.shape)
            found.count += size
            found.total += output.mean * size
            found.squares += output.norm**2
            found.finite &= output.finite
    return moments
