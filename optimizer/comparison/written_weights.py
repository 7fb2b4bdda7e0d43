"""Arrays in files that are a network's weights as the last step of its run left them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..execution.observations import Observations

if TYPE_CHECKING:
    from .arrays import Arrays


def weights_in(run: Observations, arrays: Arrays) -> set[tuple[str, str]]:
    """Which of ``arrays`` are, bit for bit, which parameters or buffers at the end of ``run``; none of those that are one value throughout."""
    weights = run.buffers()
    if run.snapshots:
        weights |= run.tensors(run.snapshots[-1]) or {}
    return {
        (name, weight)
        for name, array in arrays.items()
        for weight, values in weights.items()
        if array.shape == values.shape
        and array.dtype == values.dtype
        and (content := array.tobytes()) == values.tobytes()
        and content != content[: array.itemsize] * array.size
    }
