"""Parameters that the rewrite has in other groups: two optimizers that have become one, groups in another order.

What happens to a parameter hangs on the class of its optimizer, the settings of its group, and the steps that are made. Where
all parameters of each of the original's groups have these in common, they are told as the original's optimizers would have them,
and compared as such. Saved states of optimizers are compared as they are saved.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..execution.observations import Observations, OptimizerInfo, Scheduler, Settings, Step
from .findings import Finding, Kind, note
from .optimization import settings_in
from .renamed import with_names

_Place: TypeAlias = "tuple[int, int]"
"""An optimizer of the rewrite, and one of its groups."""
_Homes: TypeAlias = "tuple[tuple[_Place, ...], ...]"
"""For each group of an optimizer of the original the places of its parameters, without repeats."""


def regrouped(original: Observations, other: Observations) -> Observations:
    """``other`` with the original's optimizers, in the order of their steps; as it is where parameters of a group part ways."""
    if other.ranks:
        return other
    if _groups(original) == _groups(other):
        return _in_order(original, other)
    homes = _homes(original, other)
    optimizers = None if homes is None else _optimizers(original, other, homes)
    steps = None if homes is None else _steps(original, other, homes)
    if optimizers is None or steps is None:
        return other
    numbers = {
        name: n for n, one in enumerate(optimizers) for group in one.groups for name in group
    }

    def called(name: str) -> str:
        """``optimizer 0/exp_avg/Net.fc.weight`` is the state of whichever optimizer has the parameter."""
        optimizer, slash, rest = name.partition("/")
        number = numbers.get(name.rpartition("/")[2])
        kept = slash and number is not None and optimizer.startswith("optimizer ")
        return f"optimizer {number}/{rest}" if kept else name

    return replace(
        with_names(other, called),
        optimizers=tuple(optimizers),
        steps=tuple(steps),
        schedulers=_schedulers(original, other),
    )


def regrouping_note(before: Observations, after: Observations) -> list[Finding]:
    """What is told of a rewrite that was regrouped."""
    if before is after:
        return []
    if _groups(before) == _groups(after):
        return [
            note(Kind.OPTIMIZER_STEPS, "optimizers step in another order, on the same gradients")
        ]
    message = (
        "parameters are in other optimizers or groups, or in another order; the settings that those of each"
        " group of the original have in common are compared"
    )
    return [note(Kind.OPTIMIZER_SETTINGS, message)]


def _in_order(original: Observations, other: Observations) -> Observations:
    """``other`` with the steps of each round in the original's order, where no gradient is taken between them in either."""
    ours, theirs = _by_round(original), _by_round(other)
    found: list[Step] = []
    for number, made in theirs.items():
        order = [step.optimizer for step in ours.get(number, ())]
        by_optimizer = {step.optimizer: step for step in made}
        between = [step for steps in (made, ours.get(number, [])) for step in steps[1:]]
        if sorted(order) != sorted(by_optimizer) or any(step.losses for step in between):
            found += made
            continue
        left = made[0].losses
        for optimizer in order:
            found.append(replace(by_optimizer[optimizer], index=len(found), losses=left))
            left = ()
    return other if tuple(found) == other.steps else replace(other, steps=tuple(found))


def _by_round(run: Observations) -> Mapping[int, list[Step]]:
    rounds: dict[int, list[Step]] = defaultdict(list)
    for step in run.steps:
        rounds[step.round].append(step)
    return rounds


def _groups(run: Observations) -> list[tuple[tuple[str, ...], ...]]:
    return [info.groups for info in run.optimizers]


def _homes(original: Observations, other: Observations) -> list[_Homes] | None:
    """Where ``other`` has the original's groups; None where it has other parameters."""
    places = {
        name: (number, group)
        for number, info in enumerate(other.optimizers)
        for group, names in enumerate(info.groups)
        for name in names
    }
    names = [name for info in original.optimizers for group in info.groups for name in group]
    if sorted(names) != sorted(places):
        return None
    return [
        tuple(tuple(dict.fromkeys(places[name] for name in group)) for group in info.groups)
        for info in original.optimizers
    ]


def _optimizers(
    original: Observations, other: Observations, homes: Sequence[_Homes]
) -> list[OptimizerInfo] | None:
    found: list[OptimizerInfo] = []
    for info, groups in zip(original.optimizers, homes, strict=True):
        there = {number: other.optimizers[number] for group in groups for number, _ in group}
        classes = {one.class_name for one in there.values()}
        rounds = [0, *sorted({at for one in there.values() for at, _ in one.changes})]
        settings = [_settings(there, groups, at) for at in rounds]
        first = _common(groups, {n: one.hyperparameters for n, one in there.items()})
        if len(classes) != 1 or first is None or any(one is None for one in settings):
            return None
        changes = [(at, one) for at, one in zip(rounds, settings, strict=True) if at and one]
        found.append(OptimizerInfo(classes.pop(), info.groups, first, tuple(changes)))
    return found


def _schedulers(original: Observations, other: Observations) -> tuple[Scheduler, ...]:
    """Those of ``other``; the original's where both versions have the same, each as often as it has optimizers."""
    ours, theirs = (_of_each_optimizer(run) for run in (original, other))
    return original.schedulers if ours and ours == theirs else other.schedulers


def _of_each_optimizer(run: Observations) -> list[Scheduler]:
    """The schedulers that every optimizer may have one of; none where some have another number of them."""
    stepped = [one for one in run.schedulers if one.steps]
    found = [one for number, one in enumerate(stepped) if one not in stepped[:number]]
    counts = {stepped.count(one) for one in found}
    return found if counts == {len(run.optimizers)} else []


def _settings(there: Mapping[int, OptimizerInfo], groups: _Homes, at: int) -> Settings | None:
    return _common(groups, {number: settings_in(info, at) for number, info in there.items()})


def _common(groups: _Homes, known: Mapping[int, Settings]) -> Settings | None:
    """The settings of each group, None where they are not the same in all of its places."""
    found: list[Mapping[str, str]] = []
    for group in groups:
        first, *others = (known[number][place] for number, place in group)
        if any(one != first for one in others):
            return None
        found.append(first)
    return tuple(found)


def _steps(
    original: Observations, other: Observations, homes: Sequence[_Homes]
) -> list[Step] | None:
    """The steps of ``other`` as the original's optimizers would make them; None where they would not."""
    ours = _by_round(original)
    found: list[Step] = []
    for number, made in _by_round(other).items():
        # A backward call between two steps is before the one and behind the other.
        if any(step.losses for step in made[1:]):
            return None
        by_optimizer = {step.optimizer: step for step in made}
        left = made[0].losses
        order = [step.optimizer for step in ours.get(number, ())] or range(len(homes))
        for optimizer in order:
            step = _step(by_optimizer, homes[optimizer], original.optimizers[optimizer])
            if step is None:
                return None
            found.append(replace(step, index=len(found), optimizer=optimizer, losses=left))
            left = ()
    return found


def _step(made: Mapping[int, Step], homes: _Homes, info: OptimizerInfo) -> Step | None:
    """The part of a round's steps that one optimizer of the original would make."""
    if any(number not in made for group in homes for number, _ in group):
        return None
    rates = [{made[number].learning_rates[place] for number, place in group} for group in homes]
    if any(len(one) != 1 for one in rates):
        return None
    names = {name for group in info.groups for name in group}
    parts = [made[number] for number in sorted({n for group in homes for n, _ in group})]
    updates = {n: u for step in parts for n, u in step.parameters.items() if n in names}
    return replace(
        parts[0],
        learning_rates=tuple(one.pop() for one in rates),
        closure=any(step.closure for step in parts),
        skipped=any(step.skipped for step in parts),
        grad_norm=math.hypot(*(update.grad_norm or 0.0 for update in updates.values())),
        parameters={
            name: updates[name] for group in info.groups for name in group if name in updates
        },
    )
