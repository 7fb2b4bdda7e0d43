"""Kept outputs of evaluations that the rewrite makes in other batches, or another order: row by row, as far as both versions' were kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ..execution.observations import Observations
from .reading import reordered_evaluations

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .deviation import Tensors

_Call: TypeAlias = "tuple[int, int, dict[int, NDArray[Any]]]"
"""Samples before it in its evaluation, its own, and its outputs by their position."""
Place: TypeAlias = "tuple[str, int]"
"""A module, and the number of rounds done before. All its calls there are one evaluation."""


def rebatched(original: Observations, other: Observations) -> dict[str, NDArray[np.generic]]:
    """What ``other`` gave for the samples of each kept call of ``original``, for the first of them where it kept fewer.

    What has no row per sample is only compared where a call of the
    same samples gave it. Of samples that are read in another order nothing is known to be the same row, but where the module is
    given the same for each.
    """
    reordered = reordered_evaluations(original, other)
    moved = shuffled(original, other)
    theirs = _calls(other)
    found: dict[str, NDArray[np.generic]] = {}
    for place, calls in _calls(original).items():
        if place[1] in reordered and place not in moved:
            continue
        rows = _RowsByInput(other, theirs[place]) if place in moved else None
        for number, (start, samples, outputs) in calls.items():
            for position, output in outputs.items():
                if rows is not None:
                    same = rows.like(original.eval_calls[number].each, position, output)
                else:
                    same = _rows(theirs[place].values(), position, start, samples, output)
                if same is not None:
                    found[f"{number}.{position}"] = same
    return found


def shuffled(original: Observations, other: Observations) -> frozenset[Place]:
    """The evaluations of the same samples in another order, by what the module is given for each of them."""
    ours, theirs = (_each_sample(run) for run in (original, other))
    return frozenset(
        place
        for place, each in ours.items()
        if each and each != theirs.get(place) and sorted(each) == sorted(theirs.get(place, ()))
    )


def _each_sample(run: Observations) -> dict[Place, list[int]]:
    """What is known of every sample of each evaluation, in its order; nothing where it is not known of all."""
    told: dict[Place, list[int]] = defaultdict(list)
    for call in run.eval_calls:
        told[call.module, call.rounds] += call.each
    unknown = {(c.module, c.rounds) for c in run.eval_calls if len(c.each) != c.samples}
    return {place: each for place, each in told.items() if place not in unknown}


class _RowsByInput:
    """The rows that the kept ``calls`` of an evaluation gave, by what went in: the first of those alike first."""

    def __init__(self, run: Observations, calls: Mapping[int, _Call]) -> None:
        self._rows: dict[tuple[int, int], list[NDArray[Any]]] = defaultdict(list)
        for number, (_, samples, outputs) in calls.items():
            for position, output in outputs.items():
                if output.shape[:1] == (samples,):
                    for digest, row in zip(run.eval_calls[number].each, output, strict=True):
                        self._rows[digest, position].append(row)

    def like(self, each: Iterable[int], position: int, output: NDArray[Any]) -> NDArray[Any] | None:
        """Those in place of the rows of ``output``, as far as they are there; of padded ones as much as all have."""
        import numpy as np

        found: list[NDArray[Any]] = []
        for digest in each:
            alike = self._rows[digest, position]
            if not alike or alike[0].ndim != output.ndim - 1:
                break
            found.append(alike.pop(0))
        if not found:
            return None
        shape = np.min([row.shape for row in (output[0], *found)], axis=0)
        columns = tuple(map(slice, shape.astype(int).tolist()))
        return np.stack([row[columns] for row in found])


def cut_like(outputs: Tensors, others: Tensors) -> dict[str, NDArray[np.generic]]:
    """``outputs`` without the rows and columns that ``others`` lack."""
    return {
        name: output[tuple(map(slice, others[name].shape))]
        for name, output in outputs.items()
        if name in others and output.ndim == others[name].ndim
    }


def _calls(run: Observations) -> defaultdict[Place, dict[int, _Call]]:
    """The kept calls of each evaluation by their numbers."""
    kept: dict[int, dict[int, NDArray[Any]]] = defaultdict(dict)
    for name, output in run.eval_outputs().items():
        number, _, position = name.partition(".")
        kept[int(number)][int(position)] = output
    found: defaultdict[Place, dict[int, _Call]] = defaultdict(dict)
    before: dict[Place, int] = defaultdict(int)
    for number, call in enumerate(run.eval_calls):
        place = call.module, call.rounds
        if number in kept:
            found[place][number] = before[place], call.samples, kept[number]
        before[place] += call.samples
    return found


def _rows(
    calls: Iterable[_Call], position: int, start: int, samples: int, output: NDArray[Any]
) -> NDArray[Any] | None:
    """What ``calls`` gave in place of ``output``, for the ``samples`` from ``start`` on.

    Where samples are padded as their batch needs, only as far as all are: what is there has the same place in each row.
    """
    import numpy as np

    parts: list[NDArray[Any]] = []
    at = start
    for begin, count, outputs in calls:
        theirs = outputs.get(position)
        if theirs is None or theirs.ndim != output.ndim:
            continue
        if (begin, count) == (start, samples) and theirs.shape == output.shape:
            return theirs
        by_row = theirs.shape[:1] == (count,) and output.shape[:1] == (samples,)
        if by_row and begin <= at < min(begin + count, start + samples):
            parts.append(theirs[at - begin : start + samples - begin])
            at += len(parts[-1])
    if not parts:
        return None
    shape = np.min([part.shape[1:] for part in (output, *parts)], axis=0)
    columns = (slice(None), *map(slice, shape.astype(int).tolist()))
    return np.concatenate([part[columns] for part in parts])
