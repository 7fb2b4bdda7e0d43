"""Scalars recorded at every step: losses, the norms of gradients and updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from ..execution.observations import Observations, Step
from .figures import StepFigures
from .findings import Finding, Kind, step_number, told_apart
from .tolerance import Precision, allowed, running_envelope, times_beyond


def loss(step: Step) -> float | None:
    """The sum of the losses backpropagated for the step, None without one."""
    return math.fsum(item.value for item in step.losses) if step.losses else None


def loss_scale(step: Step) -> float:
    """The size of the terms that :func:`loss` adds: rounding is relative to them, not to what is left of them.

    Inside of one loss terms may cancel as well: advantages whose mean is zero, times ratios of a policy to itself. What
    a layer gives is what exact sums of weights off by its rounding would give (Higham 2002, section 3.5), and where every weight is
    off by an error of its own, the terms that this moves stand beside each other: their squares add up. Perturbed runs do
    not show that where a network is compared with itself, both times with the same weights.
    """
    return math.fsum(abs(item.value) for item in step.losses) + step.weight_terms


def first_loss(step: Step) -> float | None:
    """Of a step that takes several losses by its closure the one at the weights it began with, else None."""
    return step.losses[0].value if step.closure and len(step.losses) > 1 else None


def first_loss_scale(step: Step) -> float:
    """The size of :func:`first_loss`."""
    return abs(first_loss(step) or 0.0)


def update_norm(step: Step, ignored: Container[str] = ()) -> float:
    """L2 norm of the change of all the step's parameters but those ``ignored``."""
    norms = (one.update_norm for name, one in step.parameters.items() if name not in ignored)
    return math.sqrt(math.fsum(norm**2 for norm in norms))


def grad_norm(step: Step) -> float:
    """L2 norm of the step's gradients."""
    return step.grad_norm


def compare_series(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision,
    undetermined: Mapping[str, float] | None = None,
    ignored: Container[str] = (),
) -> Iterator[Finding]:
    """The first step at which a series leaves its envelope, per series; NaN or Inf on one side first of all.

    ``undetermined``: per parameter, how far rounding alone may move it in one step (an L2 norm). The updates of those
    ``ignored`` are nothing but rounding.
    """
    yield from loss_turns_non_finite(original, other)
    known = {n: far for n, far in (undetermined or {}).items() if n not in ignored}
    moved = partial(update_norm, ignored=ignored)
    for optimizer in sorted({step.optimizer for step in original.steps}):
        runs = [_steps_of(run, optimizer) for run in (original, other, *neighbours)]
        for kind, name, value, scale in (
            # Behind the first the closure's losses are at weights that the step has moved, which rounding takes far.
            (Kind.LOSS, "first loss of the closure", first_loss, first_loss_scale),
            (Kind.LOSS, "loss", loss, loss_scale),
            (Kind.GRADIENT, "gradient norm", grad_norm, grad_norm),
            (Kind.UPDATE, "norm of the parameter update", moved, moved),
        ):
            limits = limits_of(runs[0], runs[1], runs[2:], value, scale, precision)
            if kind is Kind.UPDATE:
                limits = _with_undetermined(limits, runs[0], known, moved)
            yield from _first_outside(kind, name, runs[0], runs[1], value, limits)


def _with_undetermined(
    limits: Sequence[float],
    original: Sequence[Step],
    undetermined: Mapping[str, float],
    moved: Callable[[Step], float],
) -> list[float]:
    """``limits`` on the norm of an update, some of whose elements may have any length up to a known one.

    They stand beside the others, so it is the squares that add up.
    """
    return [
        limit + math.hypot(norm, *(undetermined.get(name, 0.0) for name in step.parameters)) - norm
        for limit, step in zip(limits, original, strict=False)
        for norm in [moved(step)]
    ]


def _steps_of(run: Observations, optimizer: int) -> list[Step]:
    return [step for step in run.steps if step.optimizer == optimizer]


def limits_of(
    original: Sequence[Step],
    other: Sequence[Step],
    neighbours: Sequence[Sequence[Step]],
    value: Callable[[Step], float | None],
    scale: Callable[[Step], float],
    precision: Precision,
) -> list[float]:
    """How far the other run's value may lie from the original's, per step.

    A step that a GradScaler skipped in only one run leaves that run a step behind: it is allowed the original's
    largest change from one step to the next for each such step.
    """
    series = [value(step) for step in original]
    spreads = [
        [
            abs(theirs - ours) if ours is not None and theirs is not None else 0.0
            for ours, theirs in zip(series, map(value, neighbour), strict=False)
        ]
        for neighbour in neighbours
    ]
    envelope = running_envelope(spreads) if spreads else []
    known = [x for x in series if x is not None and math.isfinite(x)]
    stride = max((abs(b - a) for a, b in pairwise(known)), default=0.0)
    limits: list[float] = []
    behind = 0
    for index, (ours, theirs) in enumerate(zip(original, other, strict=False)):
        spread = envelope[index] if index < len(envelope) else (envelope[-1] if envelope else 0.0)
        limits.append(allowed([spread], scale(ours), precision) + behind * stride)
        behind += ours.skipped != theirs.skipped
    return limits


def loss_turns_non_finite(original: Observations, other: Observations) -> Iterator[Finding]:
    """The first step whose loss is NaN or Inf in one of the runs only."""
    for ours, theirs in zip(original.steps, other.steps, strict=False):
        before, after = loss(ours), loss(theirs)
        if before is None or after is None or math.isfinite(before) == math.isfinite(after):
            continue
        yield Finding(
            Kind.NON_FINITE,
            f"the loss is {after:g}, not {before:.6g}",
            step=step_number(ours),
            original=before,
            rewritten=after,
        )
        return


def _first_outside(
    kind: Kind,
    name: str,
    original: Sequence[Step],
    other: Sequence[Step],
    value: Callable[[Step], float | None],
    limits: Sequence[float],
) -> Iterator[Finding]:
    compared = list(zip(original, other, limits, strict=False))
    for index, (ours, theirs, limit) in enumerate(compared):
        before, after = value(ours), value(theirs)
        if before is None or after is None or ours.skipped or theirs.skipped:
            continue
        if not (math.isfinite(before) and math.isfinite(after)):
            if math.isfinite(before):
                yield Finding(
                    Kind.NON_FINITE,
                    f"{name} is {after:g}",
                    step=step_number(ours),
                    original=before,
                    rewritten=after,
                )
            return
        if abs(after - before) > limit:
            shown, expected = told_apart(after, before)
            yield Finding(
                kind,
                f"{name} {shown}, not {expected} (allowed difference {limit:.2g})",
                step=step_number(ours),
                original=before,
                rewritten=after,
                beyond=_furthest_beyond(compared[index:], value),
            )
            return


def _furthest_beyond(
    compared: Iterable[tuple[Step, Step, float]], value: Callable[[Step], float | None]
) -> float:
    """How many times its limit the difference is, where it is most."""
    pairs = ((value(ours), value(theirs), limit) for ours, theirs, limit in compared)
    return max(
        times_beyond(abs(after - before), limit)
        for before, after, limit in pairs
        if before is not None and after is not None and math.isfinite(before)
    )


def step_figures(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations] = (),
    precision: Precision | None = None,
) -> tuple[StepFigures, ...]:
    """The steps of both runs side by side; without ``precision`` nothing but equality is allowed."""
    limits: dict[int, float] = {}
    if precision is not None:
        for optimizer in sorted({step.optimizer for step in original.steps}):
            runs = [_steps_of(run, optimizer) for run in (original, other, *neighbours)]
            values = limits_of(runs[0], runs[1], runs[2:], loss, loss_scale, precision)
            limits.update({s.index: v for s, v in zip(runs[0], values, strict=False)})
    return tuple(
        StepFigures(
            step=step_number(ours),
            optimizer=ours.optimizer,
            loss=loss(ours),
            rewritten_loss=loss(theirs),
            allowed=limits.get(ours.index, 0.0),
            grad_norm=ours.grad_norm,
            rewritten_grad_norm=theirs.grad_norm,
        )
        for ours, theirs in zip(original.steps, other.steps, strict=False)
    )
