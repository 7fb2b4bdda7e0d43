"""One network that is loaded anew, in the place of copies that are made anew: clients of a federation, members one after the other.

Each copy has parameters, and so names, of its own (``Net``, ``Net#2``); a network that other weights are loaded into keeps its
names, and may keep its optimizer. What trains is the same. Where both versions make the same steps, but for these numbers, and one
optimizer is done with before the next begins, the copies are told as one network in both: at each place by the one that
stepped last. Whether each begins with the right weights, and its optimizer with nothing that it has kept, shows in its losses, gradients and updates.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..execution.observations import Observations, OptimizerInfo, Settings, Step
from .findings import Finding, Kind, note
from .renamed import with_names

_NUMBERED = re.compile(r"(?:^|(?<=/))([^#./\s]+)#\d+(?=$|[./])")
"""The label of a root module that is not the first of its class (:func:`..execution.probe.names.label_roots`)."""
_STATE = re.compile(r"optimizer (\d+)(?=/)")
_NOT_SETTINGS = ("lr", "initial_lr")

_Names: TypeAlias = "tuple[str, ...]"


def _unnumbered(name: str) -> str:
    """``optimizer 3/exp_avg/Net.fc.weight`` for ``optimizer 3/exp_avg/Net#4.fc.weight``."""
    return _NUMBERED.sub(r"\1", name)


@dataclass(frozen=True)
class Succession:
    """How the versions are told: copies as ``one`` network, and its optimizers as one, where these are ``merged``."""

    one: bool = False
    merged: bool = False

    @classmethod
    def of(cls, original: Observations, other: Observations) -> Succession:
        """Where these two runs do not have the same names, or as many optimizers, for no other reason."""
        runs = original, other
        if any(run.ranks or run.divided for run in runs) or not all(run.steps for run in runs):
            return cls()
        pairs = list(zip(original.steps, other.steps, strict=False))
        one = any(list(ours.parameters) != list(theirs.parameters) for ours, theirs in pairs)
        merged = len(_stepping(original)) != len(_stepping(other))
        fits = (one or merged) and all(_same_places(*pair) for pair in pairs)
        if not fits or not all(map(_succeed_one_another, runs)):
            return cls()
        return cls(True, merged)

    def told(self, run: Observations) -> Observations:
        """``run``, of either version."""
        if not self.one or not run.steps or not _succeed_one_another(run):
            return run
        numbers = _merged_numbers(run) if self.merged else {}
        last = run.steps[-1].optimizer
        run = _chosen(run, {n for n, new in numbers.items() if n != last and new == numbers[last]})

        def called(name: str) -> str:
            name = _unnumbered(name)
            return _STATE.sub(lambda m: f"optimizer {numbers.get(int(m[1]), int(m[1]))}", name)

        run = with_names(run, called)
        return _with_numbers(run, numbers) if numbers else run

    def notes(self) -> list[Finding]:
        """What was taken for the same."""
        if not self.one:
            return []
        message = (
            "networks of one class that are trained one after the other are told as one, and so are their optimizers: "
            "a copy for each or one that is loaded anew, an optimizer for each or one that is cleared"
        )
        return [note(Kind.STEPPED_PARAMETERS, message)]


def _stepping(run: Observations) -> set[int]:
    return {step.optimizer for step in run.steps}


def _places(step: Step) -> _Names:
    return tuple(map(_unnumbered, step.parameters))


def _same_places(ours: Step, theirs: Step) -> bool:
    return ours.round == theirs.round and _places(ours) == _places(theirs)


def _succeed_one_another(run: Observations) -> bool:
    """Whether of the optimizers that train what has the same names without numbers one is done with before the next begins.

    Two networks that are trained in turns stay two; so do those that one optimizer has.
    """
    order: dict[_Names, list[int]] = defaultdict(list)
    for step in run.steps:
        names = _places(step)
        if len(set(names)) < len(names):
            return False
        if order[names][-1:] != [step.optimizer]:
            order[names].append(step.optimizer)
    homes: dict[str, _Names] = {}
    for names in order:
        for name in names:
            if homes.setdefault(name, names) is not names:
                return False
    return all(len(set(turns)) == len(turns) for turns in order.values())


def _merged_numbers(run: Observations) -> dict[int, int]:
    """For each optimizer that steps the number that it has once those that succeed one another are one."""
    places = {step.optimizer: _places(step) for step in run.steps}
    kinds = {n: (run.optimizers[n].class_name, names) for n, names in sorted(places.items())}
    order = list(dict.fromkeys(kinds.values()))
    return {number: order.index(kind) for number, kind in kinds.items()}


def _chosen(run: Observations, gone: Iterable[int]) -> Observations:
    """``run`` with its files, hashes and parameters without those of copies that are done with, and the state of optimizers that are ``gone``."""
    before = run.called or str
    left = {f"optimizer {number}" for number in gone}

    def kept(name: str) -> bool:
        return name.partition("/")[0] not in left

    def at(rounds: float) -> Callable[[str], bool]:
        return _current(run.steps, rounds)

    def of(wanted: Callable[[str], bool]) -> Callable[[str], bool]:
        return lambda name: wanted(before(name))

    files: dict[str | None, Callable[[str], bool]] = {
        run.gradients_file: of(_current(run.steps[::-1], math.inf)),
        run.buffers_file: of(at(math.inf)),
        run.first_buffers_file: of(at(1)),
        run.optimizer_state_file: of(kept),
        **{one.file: of(at(max(1, one.round))) for one in run.snapshots},
    }
    snapshots = [
        replace(one, hashes={n: h for n, h in one.hashes.items() if wanted(n)})
        for one in run.snapshots
        for wanted in [at(max(1, one.round))]
    ]
    return replace(
        run,
        snapshots=tuple(snapshots),
        chosen={file: wanted for file, wanted in files.items() if file is not None},
    )


def _current(steps: Sequence[Step], rounds: float) -> Callable[[str], bool]:
    """Whether a tensor is of the copy that the last of ``steps`` before these ``rounds`` were over has trained.

    By the label of its network: the buffers of that go with its parameters. Names of no such network are those of what is there.
    """
    labels: dict[str, str] = {}
    for step in steps:
        if step.round < rounds:
            labels |= {_unnumbered(label): label for label in map(_label, step.parameters)}
    return lambda name: labels.get(_unnumbered(_label(name)), _label(name)) == _label(name)


def _label(name: str) -> str:
    """``Net#2`` of ``Net#2.fc.weight``."""
    return name.partition(".")[0]


def _with_numbers(run: Observations, numbers: Mapping[int, int]) -> Observations:
    """``run``, whose copies have one name, with the optimizers that succeed one another as one."""
    optimizers: dict[int, OptimizerInfo] = {}
    for number in numbers:
        info, new = run.optimizers[number], numbers[number]
        begins = next(step.round for step in run.steps if step.optimizer == number)
        known = optimizers.get(new)
        if known is None:
            optimizers[new] = info
        else:
            again = (begins, _without_rates(info.hyperparameters))
            optimizers[new] = replace(known, changes=(*known.changes, again, *info.changes))
    steps = [replace(step, optimizer=numbers[step.optimizer]) for step in run.steps]
    ordered = tuple(optimizers[number] for number in sorted(optimizers))
    return replace(run, optimizers=ordered, steps=tuple(steps))


def _without_rates(settings: Settings) -> Settings:
    return tuple(
        {key: value for key, value in group.items() if key not in _NOT_SETTINGS}
        for group in settings
    )
