"""Named tensors beside parameters and gradients, judged bit for bit or by the rule of the numeric tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from .deviation import deviations
from .findings import Finding, Kind
from .tolerance import FACTOR, Precision, times_beyond
from .vectors import Quantity, judge

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]


_FEWEST_NUMBERS, _BYTES = 4, 4
"""Of what may be seen to be rounded; the second are those of one number."""


def differing(ours: Arrays, theirs: Arrays) -> Iterator[str]:
    """The names of tensors that both have and that are not bit for bit the same."""
    for name in ours:
        if name in theirs and not _same(ours[name], theirs[name]):
            yield name


def compare_arrays(
    kind: Kind,
    what: str,
    group: Callable[[str], str],
    ours: Arrays,
    theirs: Arrays,
    near: Sequence[Arrays],
    precision: Precision,
    step: int | None = None,
    *,
    ignored: frozenset[str] = frozenset(),
) -> list[Finding]:
    """Where ``theirs`` are further from ``ours`` than rounding takes them; ``near`` are those of the neighbours.

    Floating-point tensors are judged as vectors, by ``group``. Of counts and other whole numbers as many may differ as
    :data:`.tolerance.FACTOR` times those that differ in a neighbour.
    """
    whole = frozenset(
        name
        for name, array in ours.items()
        if _is_whole(array) and (name not in theirs or _is_whole(theirs[name]))
    )
    quantity = Quantity(kind, what, group, step=step, round=step or 0, ignored=whole | ignored)
    found, _ = judge(
        quantity, deviations(ours, theirs), [deviations(ours, one) for one in near], precision
    )
    if not found and not precision.reduced:
        found = [
            Finding(kind, f"{what} of {group(name)}: rounded to {coarse}", step=step, tensor=name)
            for name in sorted(ours.keys() & theirs.keys() - whole - ignored)
            if (
                coarse := _rounded_to(
                    theirs[name], ours[name], *(a[name] for a in near if name in a)
                )
            )
        ][:1]
    for name in sorted(whole & theirs.keys()):
        if ours[name].shape != theirs[name].shape:
            continue
        changed = _changed(ours[name], theirs[name])
        spread = [_changed(ours[name], one[name]) for one in near if _comparable(one, name, ours)]
        limit = FACTOR * max(spread, default=0)
        if changed > limit:
            message = f"{what} of {group(name)}: {_told(ours[name], theirs[name], changed)}"
            beyond = times_beyond(changed, limit)
            found.append(Finding(kind, message, step=step, tensor=name, beyond=beyond))
    return found


def as_long_as_others(
    ours: NDArray[Any], theirs: NDArray[Any], near: Sequence[NDArray[Any]]
) -> bool:
    """Whether only the number of rows is another, as it is in neighbours: of a list that is chosen by numbers, such as a network's mistakes.

    By as many as :data:`.tolerance.FACTOR` times those of a neighbour.
    """
    if not ours.ndim == theirs.ndim > 0 or ours.dtype != theirs.dtype:
        return False
    if ours.shape[1:] != theirs.shape[1:]:
        return False
    spread = [abs(len(one) - len(ours)) for one in near if one.ndim == ours.ndim]
    return abs(len(theirs) - len(ours)) <= FACTOR * max(spread, default=0)


def _is_whole(array: NDArray[Any]) -> bool:
    """Whether these are whole numbers, or one number that is whole: a count of steps is kept as a float.

    A number that is zero by chance is whole in one version only.
    """
    if array.dtype.kind != "f":
        return True
    return array.ndim == 0 and float(array).is_integer()


def _rounded_to(theirs: NDArray[Any], *others: NDArray[Any]) -> str | None:
    """The type coarser than float32 that holds all numbers of ``theirs``, and not all of each of the ``others``.

    Where rounding has scattered a training, all that is allowed may be more than that. By chance a number of float32 is one of
    bfloat16, or of float16, once in 2^13 times at most; counts often are.
    """
    wide = theirs.dtype.kind == "f" and theirs.dtype.itemsize >= _BYTES
    if not wide or theirs.size < _FEWEST_NUMBERS or _is_count(theirs):
        return None
    for name, holds in (("bfloat16", _in_bfloat16), ("float16", _in_float16)):
        if holds(theirs) and not any(map(holds, others)):
            return name
    return None


def _is_count(values: NDArray[Any]) -> bool:
    import numpy as np

    return bool((values == np.rint(values)).all())


def _in_bfloat16(values: NDArray[Any]) -> bool:
    import numpy as np

    single = values.astype(np.float32)
    bits = np.frombuffer(single.tobytes(), np.uint32)
    return bool((single == values).all()) and not (bits & 0xFFFF).any()


def _in_float16(values: NDArray[Any]) -> bool:
    import numpy as np

    with np.errstate(all="ignore"):
        return bool((values.astype(np.float16).astype(values.dtype) == values).all())


def _comparable(arrays: Arrays, name: str, ours: Arrays) -> bool:
    return name in arrays and arrays[name].shape == ours[name].shape


def _changed(ours: NDArray[Any], theirs: NDArray[Any]) -> int:
    return int((ours != theirs).sum())


def _told(ours: NDArray[Any], theirs: NDArray[Any], changed: int) -> str:
    if ours.ndim == 0:
        return f"{float(theirs):g}, not {float(ours):g}"
    return f"{changed} of {ours.size} whole numbers differ"


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
