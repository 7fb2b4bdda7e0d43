"""What the optimizers did, apart from the values: steps, parameter groups, learning rates, what was updated."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from ..execution.observations import Observations, OptimizerInfo, Settings
from ..terminal import counted
from .backward_places import same_sum
from .findings import Finding, Kind, note, step_number
from .skipped_steps import never_stepped
from .tolerance import Precision

IMPLEMENTATION_CHOICES = frozenset({"fused", "foreach", "capturable", "differentiable"})
"""Options of torch.optim that choose how an update is computed, not which
(https://docs.pytorch.org/docs/stable/optim.html#algorithms)."""

_JUDGED_AS_LEARNING_RATES = frozenset({"lr", "initial_lr"})
_CYCLED = frozenset({"betas", "momentum"})
"""What a scheduler may set beside the learning rate (``OneCycleLR``, ``CyclicLR``)."""
_DERIVED = frozenset({"max_eval"})
"""What follows another setting unless it is given: LBFGS evaluates one and a quarter times as often as it iterates."""
_SETTING_ROUNDING = 2 * Precision.FLOAT32.unit_roundoff
"""A learning rate held in a float32 tensor (``capturable=True``) is the Python float, rounded."""


def compare_optimization(
    original: Observations, other: Observations, precision: Precision = Precision.FLOAT32
) -> list[Finding]:
    """Every difference in conduct of the optimizers; gradients below ``precision``'s rounding count as zero."""
    return [
        *_optimizers(original, other),
        *_steps(original, other),
        *_backward_calls(original, other, precision),
        *_loss_dtypes(original, other),
        *_learning_rates(original, other),
        *_skipped(original, other),
        *_frozen(original, other, precision),
    ]


def _optimizers(original: Observations, other: Observations) -> Iterator[Finding]:
    begun = [[s.steps.count(0) for s in run.schedulers] for run in (original, other)]
    explained = _CYCLED if begun[0] != begun[1] else frozenset[str]()
    yield from _trained_no_more(original, other)
    for index, (ours, theirs) in enumerate(
        zip(original.optimizers, other.optimizers, strict=False)
    ):
        yield from _one_optimizer(f"optimizer {index}", ours, theirs, explained, _owners(other))
    before, after = len(original.optimizers), len(other.optimizers)
    if before != after:
        more = original if before > after else other
        steps = (s for s in more.steps if s.optimizer >= min(before, after))
        first = next(steps, None)
        yield Finding(
            Kind.OPTIMIZER_STEPS,
            f"the rewrite has {counted(after, 'optimizer')}, not {before}",
            step=None if first is None else step_number(first),
            original=before,
            rewritten=after,
        )


def _trained_no_more(original: Observations, other: Observations) -> Iterator[Finding]:
    """What no optimizer of the rewrite has, before what another one has: that may be all the same.

    Not where the whole optimizer is gone, or makes no step: that is told then.
    """
    ours, owners = _owners(original), _owners(other)
    left = {number for name, number in ours.items() if name in owners}
    steps = {number for number, info in enumerate(other.optimizers) if info.groups}
    idle = set(range(len(other.optimizers))) - steps
    for name, number in sorted(ours.items()):
        if name not in owners and number in (left | steps) - idle:
            message = f"optimizer {number} no longer has this parameter"
            yield Finding(Kind.STEPPED_PARAMETERS, message, tensor=name)


def _owners(run: Observations) -> dict[str, int]:
    """The first optimizer of each parameter."""
    numbers = reversed(list(enumerate(run.optimizers)))
    return {name: n for n, info in numbers for group in info.groups for name in group}


def _one_optimizer(
    label: str,
    ours: OptimizerInfo,
    theirs: OptimizerInfo,
    explained: frozenset[str],
    owners: Mapping[str, int],
) -> Iterator[Finding]:
    """``explained``: settings that differ at the first step because a scheduler was stepped otherwise before it, which is told by itself."""
    if ours.class_name != theirs.class_name:
        yield Finding(
            Kind.OPTIMIZER_SETTINGS,
            f"{label} is of another class",
            original=ours.class_name,
            rewritten=theirs.class_name,
        )
    if ours.groups != theirs.groups:
        yield from _changed_groups(label, ours, theirs, owners)
    found = _changed_settings(label, ours.hyperparameters, theirs.hyperparameters, explained)
    yield from found
    if not found:
        yield from _settings_later(label, ours, theirs)


def _changed_settings(
    label: str, ours: Settings, theirs: Settings, explained: frozenset[str] = frozenset()
) -> list[Finding]:
    ignored = IMPLEMENTATION_CHOICES | _JUDGED_AS_LEARNING_RATES | explained
    return [
        Finding(
            Kind.OPTIMIZER_SETTINGS,
            f"{label}, parameter group {group}: {name} is {after or 'unset'}, not {before or 'unset'}",
            original=before,
            rewritten=after,
        )
        for group, (settings, changed) in enumerate(zip(ours, theirs, strict=False))
        for name in _in_order((settings.keys() | changed.keys()) - ignored)
        for before, after in [(settings.get(name), changed.get(name))]
        if not _same_setting(before, after)
    ]


def _in_order(names: Iterable[str]) -> list[str]:
    """The settings that others may follow first."""
    return sorted(names, key=lambda name: (name in _DERIVED, name))


def _settings_later(label: str, ours: OptimizerInfo, theirs: OptimizerInfo) -> Iterator[Finding]:
    """The first round after which settings differ that started the same: a momentum that a scheduler changes."""
    for round_ in sorted({at for info in (ours, theirs) for at, _ in info.changes}):
        before, after = (settings_in(info, round_) for info in (ours, theirs))
        found = _changed_settings(label, before, after)
        if found:
            yield from (replace(finding, step=round_ + 1) for finding in found)
            return


def settings_in(info: OptimizerInfo, round_: int) -> Settings:
    """What held in that round, without what is judged as learning rates."""
    earlier = [settings for at, settings in info.changes if at <= round_]
    return earlier[-1] if earlier else info.hyperparameters


def _same_setting(before: str | None, after: str | None) -> bool:
    """Whether two settings are the same value, however it was written: ``0`` and ``0.0``, a tuple and a list."""
    if before == after or before is None or after is None:
        return before == after
    try:
        return _alike(ast.literal_eval(before), ast.literal_eval(after))
    except (ValueError, SyntaxError):
        return False


def _alike(before: object, after: object) -> bool:
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        one, two = cast("Sequence[object]", before), cast("Sequence[object]", after)
        return len(one) == len(two) and all(map(_alike, one, two))
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        return math.isclose(before, after, rel_tol=_SETTING_ROUNDING, abs_tol=0.0)
    return before == after


def _changed_groups(
    label: str, ours: OptimizerInfo, theirs: OptimizerInfo, owners: Mapping[str, int]
) -> Iterator[Finding]:
    """``owners``: which optimizer of the rewrite has a parameter. One that never steps has none."""
    if not ours.groups or not theirs.groups:
        more = "no longer makes a step" if ours.groups else "makes steps, and none in the original"
        yield Finding(Kind.STEPPED_PARAMETERS, f"{label} {more}")
        return
    before = {name for group in ours.groups for name in group}
    after = {name for group in theirs.groups for name in group}
    for name in sorted((before - after) & owners.keys()):
        message = f"{label} no longer has this parameter, optimizer {owners[name]} has it"
        yield Finding(Kind.STEPPED_PARAMETERS, message, tensor=name)
    for name in sorted(after - before):
        yield Finding(Kind.STEPPED_PARAMETERS, f"{label} has a parameter more", tensor=name)
    if before == after:
        yield Finding(
            Kind.OPTIMIZER_SETTINGS,
            f"{label} has its parameters in other groups or in another order",
            original=len(ours.groups),
            rewritten=len(theirs.groups),
        )


def _steps(original: Observations, other: Observations) -> Iterator[Finding]:
    for ours, theirs in zip(original.steps, other.steps, strict=False):
        if (ours.round, ours.optimizer) != (theirs.round, theirs.optimizer):
            yield Finding(
                Kind.OPTIMIZER_STEPS,
                f"optimizer {theirs.optimizer} steps where the original steps optimizer {ours.optimizer}",
                step=step_number(theirs),
                original=ours.optimizer,
                rewritten=theirs.optimizer,
            )
            return
    before, after = len(original.steps), len(other.steps)
    if before != after or original.rounds != other.rounds:
        word = "fewer" if (after, other.rounds) < (before, original.rounds) else "more"
        yield Finding(
            Kind.OPTIMIZER_STEPS,
            f"{word} optimizer steps: {after} in {other.rounds} rounds, not {before} in {original.rounds}",
            step=min(original.rounds, other.rounds) + 1,
            original=before,
            rewritten=after,
        )


def _backward_calls(
    original: Observations, other: Observations, precision: Precision
) -> Iterator[Finding]:
    """Losses backpropagated in one call for several are told, not failed, when their sum is the same."""
    for ours, theirs in zip(original.steps, other.steps, strict=False):
        before, after = len(ours.losses), len(theirs.losses)
        if before == after:
            continue
        finding = (
            "an optimizer step without a backward call before it"
            if after == 0
            else f"{after} backward calls before the step, not {before}"
        )
        if after and before and same_sum([ours], [theirs], precision.relative_error):
            yield note(
                Kind.BACKWARD_CALLS,
                finding + "; the losses add up to the same",
                step=step_number(ours),
            )
        else:
            yield Finding(
                Kind.BACKWARD_CALLS,
                finding,
                step=step_number(ours),
                original=before,
                rewritten=after,
            )
        return


def _loss_dtypes(original: Observations, other: Observations) -> Iterator[Finding]:
    for ours, theirs in zip(original.steps, other.steps, strict=False):
        for before, after in zip(ours.losses, theirs.losses, strict=False):
            if before.dtype != after.dtype:
                yield note(
                    Kind.LOSS_DTYPE,
                    f"the loss is computed in {after.dtype}, not {before.dtype}",
                    step=step_number(ours),
                )
                return


def _learning_rates(original: Observations, other: Observations) -> Iterator[Finding]:
    for ours, theirs in zip(original.steps, other.steps, strict=False):
        for group, (before, after) in enumerate(
            zip(ours.learning_rates, theirs.learning_rates, strict=False)
        ):
            if not math.isclose(before, after, rel_tol=_SETTING_ROUNDING, abs_tol=0.0):
                yield Finding(
                    Kind.LEARNING_RATE,
                    f"learning rate of optimizer {ours.optimizer}, parameter group {group}: "
                    f"{after:g}, not {before:g}",
                    step=step_number(ours),
                    original=before,
                    rewritten=after,
                )
                return


def _skipped(original: Observations, other: Observations) -> Iterator[Finding]:
    before = [step_number(step) for step in original.steps if step.skipped]
    after = [step_number(step) for step in other.steps if step.skipped]
    if before != after:
        listed = ", ".join(map(str, after)) or "none"
        yield note(
            Kind.SKIPPED_STEPS,
            f"GradScaler skipped steps {listed} (Inf or NaN gradients at its scale); "
            f"in the original {', '.join(map(str, before)) or 'none'}",
            step=min({*before} ^ {*after}),
        )


def _frozen(original: Observations, other: Observations, precision: Precision) -> Iterator[Finding]:
    """Parameters that one run updates and the other leaves as they were, unless a GradScaler skipped all of its steps."""
    if never_stepped(original) or never_stepped(other):
        return
    ours, theirs = _updated(original, precision), _updated(other, precision)
    any_update = {n for s in other.steps for n, u in s.parameters.items() if u.update_norm > 0}
    any_before = {n for s in original.steps for n, u in s.parameters.items() if u.update_norm > 0}
    for name in ours:
        if name not in any_update:
            yield Finding(Kind.FROZEN_PARAMETER, "no longer updated", step=ours[name], tensor=name)
    for name in theirs:
        if name not in any_before:
            yield Finding(
                Kind.STEPPED_PARAMETERS,
                "updated, and not in the original",
                step=theirs[name],
                tensor=name,
            )


def _updated(run: Observations, precision: Precision) -> Mapping[str, int]:
    """Parameters and the first step that changed them, where the gradient was more than rounding."""
    first: dict[str, int] = {}
    for step in run.steps:
        floor = precision.relative_error * step.grad_norm if math.isfinite(step.grad_norm) else 0.0
        for name, update in step.parameters.items():
            if update.update_norm > 0 and (update.grad_norm is None or update.grad_norm > floor):
                first.setdefault(name, step_number(step))
    return first
