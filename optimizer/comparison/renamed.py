"""Model classes that only have another name in the rewrite: ``Net`` that has become ``FastNet``.

Everything a run tells of parameters, layers and calls begins with the class of a root module. A class is another's by what
its models hold: the same parameters, by name and shape, in as many models.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ..execution.observations import Checkpoint, Observations
from .findings import Finding, Kind, note

_NO_CLASS = re.compile(r"optimizer\d+$")
"""What the name of a parameter of no module begins with."""


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
    if not names:
        return run
    called = _caller(names)

    def keys(known: Mapping[str, object]) -> dict[str, object]:
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
        layer_outputs=tuple(replace(one, layer=called(one.layer)) for one in run.layer_outputs),
        eval_calls=tuple(replace(one, module=called(one.module)) for one in run.eval_calls),
        training_calls=tuple(replace(one, module=called(one.module)) for one in run.training_calls),
        checkpoints=tuple(map(saved, run.checkpoints)),
        ranks=tuple(with_classes(rank, names) for rank in run.ranks),
        called=called,
    )


def _caller(names: Mapping[str, str]) -> Callable[[str], str]:
    """What a tensor is called: the class begins its name, or a part of it (``optimizer 0/exp_avg/Net.fc.weight``)."""
    classes = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    pattern = re.compile(rf"(?:^|(?<=/))({classes})(?=$|[.#/])")
    return lambda name: pattern.sub(lambda match: names[match[1]], name)


def renaming_notes(names: Mapping[str, str]) -> Iterator[Finding]:
    """What was taken for the same class."""
    for theirs, ours in names.items():
        message = (
            f"what is {ours} in the original is {theirs} in the rewrite, with the same parameters"
        )
        yield note(Kind.INITIAL_PARAMETERS, message)
