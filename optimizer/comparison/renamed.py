"""What only has another name in the rewrite: the class ``Net`` that has become ``FastNet``, a layer kept as another attribute.

Everything a run tells of parameters, layers and calls begins with the class of a root module. A class is another's by what
its models hold: the same parameters, by name and shape, in as many models. A parameter is another's where an optimizer has it in
place of it, and it starts from the same values: names are all that tells such tensors apart. Those in checkpoints are compared by
themselves.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from ..execution.observations import Checkpoint, Observations
from .findings import Finding, Kind, note
from .hand_stepped import stepped_by_hand

_Value = TypeVar("_Value")

_NO_CLASS = re.compile(r"optimizer\d+$")
"""What the name of a parameter of no module begins with."""


@dataclass(frozen=True)
class Renaming:
    """For classes and parameters of a rewrite those they are in the original, where they have other names there.

    ``evaluated`` are modules that the rewrite evaluates in the place of others: the head alone, say, on features that it keeps.
    """

    classes: Mapping[str, str]
    parameters: Mapping[str, str]
    evaluated: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, original: Observations, other: Observations) -> Renaming:
        """What ``other`` calls otherwise."""
        known = cls(renamed_classes(original, other), {})
        known = replace(known, parameters=renamed_parameters(original, known.undone(other)))
        return replace(known, evaluated=_renamed_evaluations(original, known.undone(other)))

    def undone(self, run: Observations) -> Observations:
        """``run``, of the rewrite, with the original's names."""
        run = with_classes(run, self.classes)
        run = with_names(run, _path_caller(self.parameters)) if self.parameters else run
        if not self.evaluated:
            return run
        calls = (replace(c, module=self.evaluated.get(c.module, c.module)) for c in run.eval_calls)
        return replace(run, eval_calls=tuple(calls))

    def notes(self) -> Iterator[Finding]:
        """What was taken for the same."""
        for theirs, ours in self.classes.items():
            message = f"what is {ours} in the original is {theirs} in the rewrite, with the same parameters"
            yield note(Kind.INITIAL_PARAMETERS, message)
        if self.parameters:
            theirs, ours = next(iter(self.parameters.items()))
            more = f" ({len(self.parameters)} in all)" if len(self.parameters) > 1 else ""
            message = f"what is {ours} in the original is {theirs} in the rewrite, with the same initial values"
            yield note(Kind.INITIAL_PARAMETERS, message + more)
        for theirs, ours in self.evaluated.items():
            message = f"where the original evaluates {ours}, the rewrite evaluates {theirs}"
            yield note(Kind.EVALUATION, message, tensor=ours)


def renamed_parameters(original: Observations, other: Observations) -> dict[str, str]:
    """For parameters of ``other`` that ``original`` has not, those they are there; of several alike the first is the first."""
    free: dict[object, list[str]] = defaultdict(list)
    for start, name in _starts(original):
        if name not in other.parameters:
            free[start].append(name)
    found: dict[str, str] = {}
    for start, name in _starts(other):
        if name not in original.parameters and free[start]:
            found[name] = free[start].pop(0)
    return found


def _starts(run: Observations) -> Iterator[tuple[object, str]]:
    """The optimizers' parameters, each with what it starts from: dtype, shape and bits, in which optimizer; those that steps by hand
    train as if one had them.
    """
    first = run.snapshot(0)
    trained = [list(chain(*optimizer.groups)) for optimizer in run.optimizers]
    if stepped_by_hand(run):
        trained = [list(dict.fromkeys(name for step in run.steps for name in step.parameters))]
    if first is not None:
        for number, names in enumerate(trained):
            for name in names:
                if name in first.hashes:
                    yield (number, first.hashes[name]), name


def _renamed_evaluations(original: Observations, other: Observations) -> dict[str, str]:
    """For modules that only ``other`` evaluates those that only ``original`` does, in the same places, as often, on as much.

    What they give is compared as if they were the same. Which of several alike it is, is not guessed.
    """
    ours, theirs = _evaluations(original), _evaluations(other)
    lost = [module for module in ours if module not in theirs]
    found: dict[str, str] = {}
    for module, calls in theirs.items():
        alike = [known for known in lost if ours[known] == calls]
        rivals = [known for known in theirs if known not in ours and theirs[known] == calls]
        if module not in ours and len(alike) == len(rivals) == 1:
            found[module] = alike[0]
    return found


def _evaluations(run: Observations) -> dict[str, list[tuple[object, ...]]]:
    """For each module evaluated the place of each call, the samples, and the shapes of what it gives."""
    calls: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for call in run.eval_calls:
        shapes = tuple(output.shape for output in call.outputs)
        calls[call.module].append((call.rounds, call.samples, shapes))
    return dict(calls)


def renamed_classes(original: Observations, other: Observations) -> dict[str, str]:
    """For classes of ``other``'s models that ``original`` has not, those they are called there."""
    ours, theirs = _held(original), _held(other)
    found: dict[str, str] = {}
    for name, models in theirs.items():
        alike = [known for known in ours.keys() - theirs.keys() if ours[known] == models]
        rivals = [known for known in theirs.keys() - ours.keys() if theirs[known] == models]
        if name not in ours and len(alike) == len(rivals) == 1:
            found[name] = alike[0]
    return found


def _held(run: Observations) -> dict[str, list[frozenset[tuple[str, tuple[int, ...]]]]]:
    """For each class what each of its models holds, in the order in which optimizers were given them."""
    models: dict[str, set[tuple[str, tuple[int, ...]]]] = defaultdict(set)
    for name, info in run.parameters.items():
        label, _, rest = name.partition(".")
        if rest and not _NO_CLASS.match(label):
            models[label].add((rest, info.shape))
    classes: dict[str, list[frozenset[tuple[str, tuple[int, ...]]]]] = defaultdict(list)
    for label, held in models.items():
        classes[label.partition("#")[0]].append(frozenset(held))
    return dict(classes)


def with_classes(run: Observations, names: Mapping[str, str]) -> Observations:
    """``run`` with its classes called as ``names`` says."""
    return with_names(run, _caller(names)) if names else run


def with_names(run: Observations, called: Callable[[str], str]) -> Observations:
    """``run`` with everything as it is ``called``."""
    before = run.called

    def both(name: str) -> str:
        return called(name if before is None else before(name))

    def keys(known: Mapping[str, _Value]) -> dict[str, _Value]:
        return {called(name): value for name, value in known.items()}

    def saved(one: Checkpoint) -> Checkpoint:
        entries = {
            key: replace(entry, same_as=tuple(map(called, entry.same_as)))
            for key, entry in one.entries.items()
        }
        return replace(one, entries=entries)

    return replace(
        run,
        parameters=keys(run.parameters),
        optimizers=tuple(
            replace(info, groups=tuple(tuple(map(called, group)) for group in info.groups))
            for info in run.optimizers
        ),
        steps=tuple(replace(step, parameters=keys(step.parameters)) for step in run.steps),
        snapshots=tuple(replace(one, hashes=keys(one.hashes)) for one in run.snapshots),
        layer_settings=keys(run.layer_settings),
        bias_sums=keys(run.bias_sums),
        layer_outputs=tuple(replace(one, layer=called(one.layer)) for one in run.layer_outputs),
        eval_calls=tuple(
            replace(one, module=called(one.module), trained_as=called(one.trained_as))
            for one in run.eval_calls
        ),
        further_calls=tuple(replace(one, module=called(one.module)) for one in run.further_calls),
        training_calls=tuple(replace(one, module=called(one.module)) for one in run.training_calls),
        checkpoints=tuple(map(saved, run.checkpoints)),
        ranks=tuple(with_names(rank, called) for rank in run.ranks),
        called=both,
    )


def _caller(names: Mapping[str, str]) -> Callable[[str], str]:
    """What a tensor is called: the class begins its name, or a part of it (``optimizer 0/exp_avg/Net.fc.weight``)."""
    classes = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    pattern = re.compile(rf"(?:^|(?<=/))({classes})(?=$|[.#/])")
    return lambda name: pattern.sub(lambda match: names[match[1]], name)


def _path_caller(parameters: Mapping[str, str]) -> Callable[[str], str]:
    """What a tensor, a layer or a model is called, the modules that hold ``parameters`` being those of the original."""
    known = dict(parameters)
    for theirs, ours in parameters.items():
        path, counterpart = theirs.rpartition(".")[0], ours.rpartition(".")[0]
        while path and counterpart and path != counterpart:
            known.setdefault(path, counterpart)
            (path, _, last), (counterpart, _, same) = (
                path.rpartition("."),
                counterpart.rpartition("."),
            )
            if last != same:
                break

    def called(name: str) -> str:
        """The longest known part that its last part, by slashes, begins with is the original's."""
        before, slash, path = name.rpartition("/")
        known_part, rest = path, ""
        while known_part and known_part not in known:
            known_part, dot, last = known_part.rpartition(".")
            rest = f"{dot}{last}{rest}"
        return f"{before}{slash}{known[known_part]}{rest}" if known_part else name

    return called
