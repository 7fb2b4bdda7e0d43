"""What the models were called on besides training steps: evaluations, the samples they saw, and the mode."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from ..execution.observations import Observations
from .findings import Finding, Kind

_DROPS = re.compile(r"\w*Dropout\w*\((?!p=0(\.0)?\b(?!\.))|(RNN|LSTM|GRU)\(.*\bdropout=")
"""Layers that drop, as they print themselves; one with ``p=0`` does not, and a recurrent layer tells no dropout of 0."""
_BATCH_NORM = re.compile(r"\w*BatchNorm\w*\(")

_Place = tuple[str, int]
"""A module, and the number of rounds done before."""


def compare_coverage(original: Observations, other: Observations) -> list[Finding]:
    """Evaluations missing from ``other``, more than in ``original``, or made in the other mode."""
    return list(_evaluations(original, other))


def _evaluations(original: Observations, other: Observations) -> Iterator[Finding]:
    """The first place where evaluations differ: what comes after follows from it."""
    before, after = _evaluated(original), _evaluated(other)
    for place in sorted(before.keys() | after.keys(), key=lambda k: (k[1], k[0])):
        ours, theirs = before.get(place, 0), after.get(place, 0)
        if ours == theirs and (place in before) == (place in after):
            continue
        if 0 < max(ours, theirs) <= _values(original, place) == _values(other, place):
            continue  # as many results: a dimension of candidates became one of the batch, say
        mode = _other_mode(place, theirs - ours, original, other)
        kind, message = mode or (
            Kind.EVALUATION,
            _moved(place, before, after, original, other)
            or _coverage_message(place, before.get(place), after.get(place))
            + (_left_on(place, original, other) if theirs > ours else ""),
        )
        yield Finding(
            kind, message, step=place[1] + 1, tensor=place[0], original=ours, rewritten=theirs
        )
        return


def _other_mode(
    place: _Place, more: int, original: Observations, other: Observations
) -> tuple[Kind, str] | None:
    """What it is when calls in eval mode have become calls in training mode, or the other way round."""
    module, rounds = place
    ours, theirs = _in_training(original, place), _in_training(other, place)
    # What a search or an agent looks at next hangs on what it has seen: then as many are not evaluated in the other mode.
    gone = place not in _evaluated(other) and theirs[1] > ours[1]
    if more == 0 or (theirs[0] - ours[0] != -more and not gone):
        return None
    if more < 0:
        return (
            Kind.EVALUATION_MODE,
            f"{module} is evaluated in training mode after round {rounds}"
            + _told_of_mode(
                original, module, "dropout is on", "BatchNorm uses its batches' statistics"
            )
            + " (is model.eval() missing?)",
        )
    if ours[1] - theirs[1] == more:
        return (
            Kind.EVALUATION_MODE,
            f"{module} is called in eval mode after round {rounds}, where the original calls it without "
            "gradients in training mode",
        )
    return (
        Kind.EVALUATION_MODE,
        f"{module} trains in eval mode after round {rounds}"
        + _told_of_mode(original, module, "dropout is off", "BatchNorm uses its running statistics")
        + " (is model.train() missing? is eval mode left on?)",
    )


def _told_of_mode(run: Observations, module: str, of_dropout: str, of_batch_norm: str) -> str:
    """What the mode does to the layers that ``module`` has; nothing where it has none of these, or its layers are not known."""
    layers = [layer for name, layer in run.layer_settings.items() if name.startswith(f"{module}.")]
    told = [
        what
        for pattern, what in ((_DROPS, of_dropout), (_BATCH_NORM, of_batch_norm))
        if any(pattern.match(layer) for layer in layers)
    ]
    return f": {' and '.join(told)}" if told else ""


def _moved(
    place: _Place,
    before: Mapping[_Place, int],
    after: Mapping[_Place, int],
    original: Observations,
    other: Observations,
) -> str | None:
    """What is told where the module's evaluation of that number is one of as many samples, at another place."""
    module = place[0]
    ours, theirs = ([p for p in sorted(run) if p[0] == module] for run in (before, after))
    number = (ours if place in before else theirs).index(place)
    if number >= min(len(ours), len(theirs)):
        return None
    pair = ours[number], theirs[number]
    if pair[0] == pair[1] or before[pair[0]] != after[pair[1]]:
        return None
    (_, expected), (_, found) = pair
    missing = expected > found and _losses_at(other, found) > _losses_at(original, found)
    return (
        f"{module} is evaluated after round {found}, in the original after round {expected}"
        + missing * ": the step before it is missing, and its gradients go into the next"
    )


def _losses_at(run: Observations, rounds: int) -> int:
    """How many losses are backpropagated for the steps of the round behind so many."""
    return sum(len(step.losses) for step in run.steps if step.round == rounds)


def _coverage_message(place: _Place, ours: int | None, theirs: int | None) -> str:
    module, rounds = place
    if theirs is None:
        return f"evaluation of {module} after round {rounds} is missing"
    if ours is None:
        return f"{module} is called in eval mode after round {rounds}, and not in the original"
    return f"evaluation of {module} after round {rounds} sees {theirs} samples, not {ours}"


def _left_on(place: _Place, original: Observations, other: Observations) -> str:
    """What is asked where the module is called on fewer samples in training mode there."""
    fewer = _in_training(other, place)[0] < _in_training(original, place)[0]
    return "; is eval mode left on?" if fewer else ""


def _evaluated(run: Observations) -> Counter[_Place]:
    """Samples that went through each module in eval mode, per place."""
    samples: Counter[_Place] = Counter()
    for call in run.eval_calls:
        samples[call.module, call.rounds] += call.samples
    return samples


def _values(run: Observations, place: _Place) -> int:
    """Elements of all outputs there."""
    calls = (call for call in run.eval_calls if (call.module, call.rounds) == place)
    return sum(math.prod(output.shape) for call in calls for output in call.outputs)


def _in_training(run: Observations, place: _Place) -> tuple[int, int]:
    """Samples that went through in training mode there, and those of them without gradients."""
    calls = [c for c in run.training_calls if (c.module, c.rounds) == place]
    return sum(c.samples for c in calls), sum(c.without_gradients for c in calls)
