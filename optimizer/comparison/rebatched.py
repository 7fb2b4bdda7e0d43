"""Kept outputs of evaluations that the rewrite makes in other batches: row by row, as far as both versions' were kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..execution.observations import Observations
from .reading import reordered_evaluations

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .deviation import Tensors

_Call: TypeAlias = "tuple[int, int, dict[int, NDArray[Any]]]"
"""Samples before it in its evaluation, its own, and its outputs by their position."""


def rebatched(original: Observations, other: Observations) -> dict[str, NDArray[np.generic]]:
    """What ``other`` gave for the samples of each kept call of ``original``, for the first of them where it kept fewer.

    An evaluation is all calls of a module at one place. What has no row per sample is only compared where a call of the
    same samples gave it. Of samples in another order nothing is known to be the same row.
    """
    reordered = reordered_evaluations(original, other)
    theirs = _calls(other)
    found: dict[str, NDArray[np.generic]] = {}
    for place, calls in _calls(original).items():
        if place[1] in reordered:
            continue
        for number, (start, samples, outputs) in calls.items():
            for position, output in outputs.items():
                same = _rows(theirs[place].values(), position, start, samples, output)
                if same is not None:
                    found[f"{number}.{position}"] = same
    return found


def cut_like(outputs: Tensors, others: Tensors) -> dict[str, NDArray[np.generic]]:
    """``outputs`` without the rows and columns that ``others`` lack."""
    return {
        name: output[tuple(map(slice, others[name].shape))]
        for name, output in outputs.items()
        if name in others and output.ndim == others[name].ndim
    }


def _calls(run: Observations) -> defaultdict[tuple[str, int], dict[int, _Call]]:
    """The kept calls of each evaluation by their numbers."""
    kept: dict[int, dict[int, NDArray[Any]]] = defaultdict(dict)
    for name, output in run.eval_outputs().items():
        number, _, position = name.partition(".")
        kept[int(number)][int(position)] = output
    found: defaultdict[tuple[str, int], dict[int, _Call]] = defaultdict(dict)
    before: dict[tuple[str, int], int] = defaultdict(int)
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
