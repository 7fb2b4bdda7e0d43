"""Evaluations of several modules of one class that a rewrite makes in another order: of the averaged weights first, then of the trained."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby

from ..execution.observations import EvalCall, Observations
from .rebatched import Place


def in_order_of(original: Observations, other: Observations) -> Observations:
    """``other`` with its evaluations in the order of the ``original``'s, by which of the trained modules is called, or none."""
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
