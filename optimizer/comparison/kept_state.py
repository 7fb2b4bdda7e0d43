"""What a run keeps beside the trained parameters: the optimizers' state, and other copies of the weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from ..execution.observations import Observations
from .arrays import compare_arrays, differing
from .deviation import change_deviations
from .findings import Finding, Kind, note
from .tolerance import Precision
from .vectors import Quantity, judge

if TYPE_CHECKING:
    from .arrays import Arrays

_SHOWN = 3
_PLACE = re.compile(r"\[[0-9]+\]")


def compare_state_bits(original: Observations, other: Observations) -> Iterator[Finding]:
    """The first tensor of each kind that differs at all."""
    step = original.rounds
    state = original.optimizer_state(), other.optimizer_state()
    yield from _missing(*state, step)
    for name in differing(*state):
        path, _, parameter = name.rpartition("/")
        message = f"{_told(path)} differs at the end of the run"
        yield Finding(Kind.OPTIMIZER_STATE, message, step=step, tensor=parameter)
        break
    yield from _not_found(original, other)
    for when, ours, theirs in (
        (1, original.first_copies(), other.first_copies()),
        (step, original.last_copies(), other.last_copies()),
    ):
        for name in differing(ours, theirs):
            message = f"these weights, which no optimizer trains, differ after round {when}"
            yield Finding(Kind.WEIGHT_COPY, message, step=when, tensor=_shown(name))
            return


def compare_state_numbers(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision,
    ignored: Collection[str] = (),
) -> Iterator[Finding]:
    """What is further off than rounding takes it, but for the state of the parameters that are ``ignored``.

    Nothing is where a GradScaler skipped other steps: it is then all of another number of steps.
    """
    step = original.rounds
    state = original.optimizer_state(), other.optimizer_state()
    near = [run.optimizer_state() for run in neighbours]
    yield from _missing(*state, step, near)
    yield from _not_found(original, other)
    if [s.skipped for s in original.steps] != [s.skipped for s in other.steps]:
        return
    yield from compare_arrays(
        Kind.OPTIMIZER_STATE,
        "state at the end",
        lambda name: _told(name.rpartition("/")[0]),
        *state,
        near,
        precision,
        step,
        ignored=frozenset(name for name in state[0] if name.rpartition("/")[2] in ignored),
    )
    found = compare_arrays(
        Kind.WEIGHT_COPY,
        "weights",
        _untrained,
        original.first_copies(),
        other.first_copies(),
        [run.first_copies() for run in neighbours],
        precision,
        1,
    )
    yield from found or _copies_moved(original, other, neighbours, precision)


def _copies_moved(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision,
) -> list[Finding]:
    """How far the copies moved from round 1 to the end: against that, rounding is small, and mistakes are not."""
    first, last = original.first_copies(), original.last_copies()
    theirs, *near = (
        change_deviations(first, last, run.first_copies(), run.last_copies())
        for run in (other, *neighbours)
    )
    quantity = Quantity(
        Kind.WEIGHT_COPY,
        f"movement up to step {original.rounds} of the weights",
        _untrained,
        step=original.rounds,
        round=original.rounds,
    )
    return judge(quantity, theirs, near, precision)[0]


def _missing(
    ours: Arrays, theirs: Arrays, step: int, neighbours: Sequence[Arrays] = ()
) -> Iterator[Finding]:
    """What is not kept in ``theirs``, unless a neighbour does not either: L-BFGS has a history as long as it iterated."""
    always = [name for name in ours if all(name in run for run in neighbours)]
    lacking = [name for name in always if name not in theirs]
    if lacking and theirs:
        path, _, parameter = lacking[0].rpartition("/")
        message = f"{_told(path)} is not kept any more"
        yield Finding(Kind.OPTIMIZER_STATE, message, step=step, tensor=parameter)


def _not_found(original: Observations, other: Observations) -> Iterator[Finding]:
    ours, theirs = (dict.fromkeys(map(_holder, run.last_copies())) for run in (original, other))
    gone = [holder for holder in ours if holder not in theirs]
    if gone:
        message = "are not found under these names in the rewrite, so not compared"
        yield note(Kind.WEIGHT_COPY, f"weights in {', '.join(gone[:_SHOWN])} {message}")


def _told(path: str) -> str:
    """``exp_avg of optimizer 0`` for ``optimizer 0/exp_avg``."""
    optimizer, _, key = path.partition("/")
    return f"{_PLACE.sub('', key)} of {optimizer}"


def _holder(name: str) -> str:
    return name.rpartition("/")[0]


def _untrained(name: str) -> str:
    return f"`{_holder(name)}`, which no optimizer trains"


def _shown(name: str) -> str:
    """``ema.shadow['fc.weight']`` for ``ema.shadow/fc.weight``; a module's parameters by their dots."""
    holder, _, key = name.rpartition("/")
    return f"{holder}: {key}"
