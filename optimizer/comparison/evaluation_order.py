"""Evaluations that a rewrite makes in another order: of the averaged weights before the trained, of each network of an ensemble as soon as it is trained."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from ..execution.observations import EvalCall, Observations
from .rebatched import Place


def in_order_of(original: Observations, other: Observations) -> Observations:
    """``other`` with its evaluations in the order of the ``original``'s, by which of the trained modules is called, or none."""
    other = _at_rounds_of(original, other)
    ours, theirs = _by_place(original), _by_place(other)
    changed = {
        place: iter(_ordered(ours[place], calls))
        for place, calls in theirs.items()
        if place in ours and _modules(ours[place]) != _modules(calls)
    }
    if not changed:
        return other
    return other.with_eval_calls(
        [
            next(changed[place]) if place in changed else call
            for call in other.eval_calls
            for place in [(call.module, call.rounds)]
        ]
    )


def _at_rounds_of(original: Observations, other: Observations) -> Observations:
    """``other`` with the evaluations of a trained module told at the original's rounds, where it is evaluated on the same and nothing trains it in between.

    That nothing does shows in the rounds, or in outputs that are the same bit for bit: a round has steps of several optimizers.
    """
    ours, theirs = _by_module(original), _by_module(other)
    rounds: dict[int, int] = {}
    for name, calls in theirs.items():
        known = ours.get(name, [])
        if _evaluated_on(calls) == _evaluated_on(known):
            pairs = [(call, one) for call, one in zip(calls, known, strict=True)]
            trained = _trained_in(original, name) | _trained_in(other, name)
            if all(
                (call.outputs and call.outputs == one.outputs)
                or not trained.intersection(_between(call, one))
                for call, one in pairs
            ):
                rounds.update({id(call): one.rounds for call, one in pairs})
    if all(rounds.get(id(call), call.rounds) == call.rounds for call in other.eval_calls):
        return other
    calls = sorted(other.eval_calls, key=lambda call: rounds.get(id(call), call.rounds))
    told = tuple(replace(call, rounds=rounds.get(id(call), call.rounds)) for call in calls)
    return replace(other.with_eval_calls(calls), eval_calls=told)


def _by_module(run: Observations) -> dict[str, list[EvalCall]]:
    """The evaluations of each trained module."""
    found: dict[str, list[EvalCall]] = defaultdict(list)
    for call in run.eval_calls:
        if call.trained_as and not call.part:
            found[call.trained_as].append(call)
    return found


def _evaluated_on(calls: Sequence[EvalCall]) -> list[tuple[str, int, int]]:
    return [(call.module, call.samples, call.inputs) for call in calls]


def _trained_in(run: Observations, module: str) -> set[int]:
    """The rounds in which a step has parameters of ``module``."""
    own = f"{module}."
    return {s.round for s in run.steps if any(name.startswith(own) for name in s.parameters)}


def _between(call: EvalCall, other: EvalCall) -> range:
    """The rounds after one of two calls and before the other."""
    return range(*sorted((call.rounds, other.rounds)))


def _by_place(run: Observations) -> dict[Place, list[EvalCall]]:
    found: dict[Place, list[EvalCall]] = defaultdict(list)
    for call in run.eval_calls:
        found[call.module, call.rounds].append(call)
    return found


def _modules(calls: Sequence[EvalCall]) -> list[str]:
    return [call.trained_as for call in calls]


def _ordered(ours: Sequence[EvalCall], theirs: Sequence[EvalCall]) -> list[EvalCall]:
    """Call by call where each is called as often, as they are where they take the same turns, else one module after the other.

    Those of one module stay in their order.
    """
    wanted, given = _modules(ours), _modules(theirs)
    if Counter(wanted) == Counter(given):
        left = {name: iter([c for c in theirs if c.trained_as == name]) for name in given}
        return [next(left[name]) for name in wanted]
    if [name for name, _ in groupby(wanted)] == [name for name, _ in groupby(given)]:
        return list(theirs)  # the same turns: only one of them is longer
    first = {name: place for place, name in reversed(list(enumerate(wanted)))}
    return sorted(theirs, key=lambda call: first.get(call.trained_as, len(wanted)))
