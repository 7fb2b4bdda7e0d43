"""What becomes of the samples of a batch in a computation: the algebra behind :mod:`.loss_reductions`.

The numbers of a batch that is divided among processes add up, or average, to those of the whole batch only as long as
nothing that is not linear is computed from a sum or a mean.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from enum import Enum
from functools import reduce
from typing import TypeAlias


class Reduction(Enum):
    """What a value is to the batch that it was computed from."""

    FIXED = "fixed"
    """It does not depend on the batch."""
    GIVEN = "given"
    """Numbers of each sample, as the batch has them."""
    SAMPLES = "samples"
    """Numbers of each sample that a network has a part in, and no other sample."""
    RESULT = "result"
    """As SAMPLES: what a network returns, which may also be a loss that it has computed itself."""
    CROSSED = "crossed"
    """Numbers of each sample that lie along another dimension than the first, to be compared with those of the others."""
    COUNT = "count"
    """How many samples (or numbers of them) there are, or so many times a fixed number."""
    SIZES = "sizes"
    """The shape of a tensor of the batch: first how many samples there are, then what does not depend on it."""
    WEIGHT = "weight"
    """A sum of numbers that the batch has: how many words are no padding."""
    SUM = "sum"
    """A sum over the samples."""
    MEAN = "mean"
    """A mean over the samples."""
    WEIGHTED = "weighted"
    """A mean in which the samples weigh differently: a sum by the sum of weights."""
    REPLICAS = "replicas"
    """A mean over the samples that a network has computed itself: under ``DataParallel`` one for each replica, in a vector."""
    WHOLE = "whole"
    """One number of all that a network returns, in which it may have reduced the samples itself."""
    MIXED = "mixed"
    """What a function that is not linear makes of a sum or a mean, and what is made of several samples: another number for each part
    of a batch."""


Reduced: TypeAlias = Reduction | None
"""None stands for what is not known, or is none of these."""

EACH = frozenset({Reduction.GIVEN, Reduction.SAMPLES, Reduction.RESULT})
"""What is not reduced: numbers of each sample."""
_ELEMENTWISE = EACH | {Reduction.FIXED}
_MEANS = frozenset({Reduction.MEAN, Reduction.WEIGHTED})
_AMOUNTS = frozenset({Reduction.COUNT, Reduction.WEIGHT})
_SUMS = _AMOUNTS | {Reduction.SUM}
REDUCED = _SUMS | _MEANS | {Reduction.REPLICAS}
_MIX = _MEANS | {Reduction.SUM, Reduction.REPLICAS, Reduction.WHOLE, Reduction.MIXED}
"""What any other function than a sum makes something mixed of."""


def elementwise(parts: Iterable[Reduced]) -> Reduced:
    """What a function of single elements makes of ``parts``."""
    kinds = set(parts)
    if Reduction.MIXED in kinds or (kinds & _MIX and None not in kinds):
        return Reduction.MIXED
    if Reduction.CROSSED in kinds:
        return _crossed(kinds)
    if not kinds <= _ELEMENTWISE:
        return None
    if kinds & EACH:
        return Reduction.SAMPLES if kinds & (EACH - {Reduction.GIVEN}) else Reduction.GIVEN
    return Reduction.FIXED


def _crossed(kinds: set[Reduced]) -> Reduced:
    if kinds & EACH:
        return Reduction.MIXED  # each sample with every other one
    return Reduction.CROSSED if kinds <= {Reduction.CROSSED, Reduction.FIXED} else None


def crossed(value: Reduced) -> Reduced:
    """What ``value`` is with another dimension ahead of that of the samples: ``value[None]``."""
    return Reduction.CROSSED if value in EACH else elementwise([value])


def compared(parts: Iterable[Reduced]) -> Reduced:
    """What a function makes of ``parts`` that takes all rows of one with all rows of the other, or a row by what the others have."""
    kinds = set(parts)
    if kinds <= {Reduction.FIXED}:
        return Reduction.FIXED
    return Reduction.MIXED if kinds <= EACH | {Reduction.CROSSED, Reduction.MIXED} else None


def added(parts: Iterable[Reduced]) -> Reduced:
    """What the sum of ``parts`` is, and what a variable is that may hold any of them."""
    return reduce(_added, parts)


def _added(one: Reduced, other: Reduced) -> Reduced:
    kinds = {one, other}
    if len(kinds) == 1:
        return one
    if Reduction.MIXED in kinds:
        return Reduction.MIXED
    if None in kinds:
        return None
    if Reduction.FIXED in kinds:
        kind = other if one is Reduction.FIXED else one
        if kind in EACH:
            return elementwise(kinds)
        return None if kind in {Reduction.COUNT, Reduction.SIZES} else kind
    if Reduction.REPLICAS in kinds and kinds <= REDUCED - _SUMS:
        return Reduction.REPLICAS
    if kinds <= _MEANS:
        return Reduction.WEIGHTED
    if kinds <= _SUMS:
        return Reduction.SUM if Reduction.SUM in kinds else Reduction.WEIGHT
    return elementwise(kinds) if kinds & EACH else None


def product(one: Reduced, other: Reduced) -> Reduced:
    """What the product of two values is."""
    kinds = {one, other}
    if Reduction.FIXED in kinds:
        kind = other if one is Reduction.FIXED else one
        return kind if kind in REDUCED | {Reduction.WHOLE} else elementwise(kinds)
    if kinds == {Reduction.MEAN, Reduction.COUNT}:
        return Reduction.SUM
    return elementwise(kinds)


def quotient(above: Reduced, below: Reduced) -> Reduced:
    """What ``above / below`` is."""
    if below is Reduction.FIXED:
        return product(above, below)
    if above is below is Reduction.COUNT:
        return Reduction.FIXED
    if above in _SUMS and below in _AMOUNTS:
        return Reduction.MEAN if below is Reduction.COUNT else Reduction.WEIGHTED
    return elementwise({above, below})


def operation(operator: ast.operator, left: Reduced, right: Reduced) -> Reduced:
    """What ``left operator right`` is."""
    match operator:
        case ast.Add() | ast.Sub():
            return added((left, right))
        case ast.Mult():
            return product(left, right)
        case ast.Div():
            return quotient(left, right)
        case ast.MatMult():  # each row of the left one by all of the right one
            return elementwise((left, right)) if right is Reduction.FIXED else None
        case _:
            return elementwise((left, right))


def whole_mean(value: Reduced) -> Reduced:
    """What the mean over all of ``value`` is."""
    if value in {Reduction.GIVEN, Reduction.SAMPLES, Reduction.REPLICAS}:
        return Reduction.MEAN
    return _whole(value)


def whole_sum(value: Reduced) -> Reduced:
    """What the sum over all of ``value`` is."""
    if value is Reduction.GIVEN:
        return Reduction.WEIGHT
    if value is Reduction.SAMPLES:
        return Reduction.SUM
    return _whole(value)


def whole_number(value: Reduced) -> Reduced:
    """What any other number of all of ``value`` is: its largest, its deviation."""
    return Reduction.WHOLE if value is Reduction.SAMPLES else _whole(value)


def _whole(value: Reduced) -> Reduced:
    if value is Reduction.RESULT:
        return Reduction.WHOLE
    return value if value in _MEANS | {Reduction.FIXED, Reduction.WHOLE, Reduction.MIXED} else None


def gathered(value: Reduced) -> Reduced:
    """What ``DataParallel`` gives where each of its replicas returns ``value``, of its share of the batch."""
    if value in _MEANS:
        return Reduction.REPLICAS
    return value if value in _ELEMENTWISE else None
