"""Padding in what a network gives where it is evaluated, as the original's layers tell it and the rewrite's do not.

Where sentences are packed, or an encoder leaves masked words out, a network gives nothing but a constant behind a sentence's end. One that
runs over all of the batch gives something there, which nobody reads: the lengths say so, and what the script makes of the rest is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..execution.observations import Observations
from .rebatched import Place

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .deviation import Tensors


def padding_left(original: Observations, other: Observations) -> frozenset[Place]:
    """The evaluations of whose padding only ``original`` tells."""
    ours, theirs = (
        {(call.module, call.rounds) for call in run.eval_calls if call.padded}
        for run in (original, other)
    )
    return frozenset(ours - theirs)


def without_padding(
    outputs: Tensors, original: Observations, places: frozenset[Place]
) -> dict[str, NDArray[np.generic]]:
    """Kept ``outputs``, by call and position of ``original``'s, with zeros for what is padding in it; in other ``places`` as they are."""
    found: dict[str, NDArray[np.generic]] = dict(outputs)
    for number, call in enumerate(original.eval_calls):
        if (call.module, call.rounds) not in places:
            continue
        for position, axis, lengths in call.padded:
            name = f"{number}.{position}"
            if name in found:
                found[name] = _emptied(found[name], axis, lengths)
    return found


def _emptied(output: NDArray[Any], axis: int, lengths: tuple[int, ...]) -> NDArray[Any]:
    """``output`` with zeros behind the end of each sample, whose ``lengths`` go along ``axis``; of the first samples, where it has no more."""
    import numpy as np

    rows = np.array(np.moveaxis(output, axis, 1))
    for row, length in zip(rows, lengths, strict=False):
        row[length:] = 0
    return np.moveaxis(rows, 1, axis)
