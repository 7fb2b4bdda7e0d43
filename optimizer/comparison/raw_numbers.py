"""Binary files of a format that is not known: where the numbers in them are shows in what rounding does to them.

Records of a log that a script packs by itself, weights dumped without a header: between the original and its neighbours only floating-point
numbers in such a file differ, and of a number that is off by a rounding only the lower bytes (IEEE 754-2019, section 3.4: sign and exponent are the highest
bits, which stand last in the little-endian order of nearly all machines). So bytes move from where a number begins, and these numbers are compared.

Of what is packed (pictures, archives) nearly all moves behind the first byte that does, and whole numbers (pixels) move by one; such files are not understood.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from .arrays import compare_arrays
from .findings import Finding, Kind, note
from .tolerance import Precision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .arrays import Arrays

_LENGTHS = {"<f4": 4, "<f8": 8}
_SIZES = (1e-15, 1e15)
"""What the numbers of a training lie between, zeros apart; of random bits some 40 % do as a number in single precision, 5 % as one in double."""
_NEAR = 0.5
"""How far neighbours' numbers lie apart at most, by their size: sign and exponent hardly move."""
_STEP = 2
_MOST_STEPS = 0.25
"""How many numbers may move by no more than that many units of their last byte: if any of 256 is as likely, 2 % do so in one neighbour."""
_MOST_PLACES = 20_000
_LAID_OUT = b"\x89HDF"
"""How HDF5 begins, where it is up to the writer how the same content is laid out."""
_WORD = re.compile(rb"[A-Za-z_]{2,}")


class Place(NamedTuple):
    """Where a number is in a file, of which type, and which words stand between it and the one before."""

    start: int
    dtype: str
    words: str


def compare_raw(
    path: str,
    ours: bytes,
    theirs: bytes,
    near: Sequence[bytes],
    precision: Precision,
    *,
    rounding: bool = True,
) -> Iterator[Finding]:
    """Where a file's numbers are further off than rounding takes them; a note where it differs and is not understood.

    Without ``rounding`` those of the neighbours only tell where the numbers are.
    """
    if ours == theirs:
        return
    places = places_of_numbers(ours, near)
    if not places:
        message = f"{path} has other bytes, and is not compared"
        yield note(Kind.FILE_VALUE, message, tensor=path)
        return
    if len(theirs) != len(ours):
        message = f"{path} has {len(theirs)} bytes, not {len(ours)}"
        yield Finding(Kind.FILE_VALUE, message, tensor=path)
        return
    arrays = [numbers_at(one, places) for one in (ours, theirs, *(near if rounding else ()))]
    found = compare_arrays(
        Kind.FILE_VALUE, "numbers", lambda _: path, arrays[0], arrays[1], arrays[2:], precision
    )
    yield from (replace(finding, tensor=path) for finding in found[:1])
    first = _other_byte(ours, theirs, places, precision)
    if first is not None and not found:
        message = f"{path} has other bytes from the one at {first} on, where rounding moves none"
        yield Finding(Kind.FILE_VALUE, message, tensor=path)


def places_of_numbers(original: bytes, near: Sequence[bytes]) -> tuple[Place, ...]:
    """Where in ``original`` the numbers are that rounding moves; ``near`` are the same file of its neighbours. Empty where that is not understood."""
    import numpy as np

    if not near or any(len(one) != len(original) for one in near) or original.startswith(_LAID_OUT):
        return ()
    files = np.stack([np.frombuffer(one, np.uint8) for one in (original, *near)])
    moved = (files[1:] != files[0]).any(0)
    if not moved.any():
        return ()
    for dtype, length in _LENGTHS.items():
        if len(original) % length == 0 and _are_numbers(_read(files, dtype)).all():
            found = [Place(start, dtype, "") for start in range(0, len(original), length)]
            moving = moved.reshape(-1, length).any(1)
            first = np.flatnonzero(moving) * length
            return tuple(found) if _move_freely(files, first) else ()
    return _scattered(original, files, moved)


def numbers_at(content: bytes, places: Sequence[Place]) -> Arrays:
    """The numbers in ``content`` at ``places``, those behind the same words together."""
    import numpy as np

    data = np.frombuffer(content, np.uint8)
    starts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place in places:
        starts[place.words, place.dtype].append(place.start)
    found: dict[str, NDArray[np.float64]] = {}
    for (words, dtype), at in starts.items():
        there = data[np.array(at)[:, None] + np.arange(_LENGTHS[dtype])]
        found[f"{words} {dtype}"] = np.frombuffer(there.tobytes(), dtype).astype(np.float64)
    return found


def _scattered(
    original: bytes, files: NDArray[np.uint8], moved: NDArray[np.bool_]
) -> tuple[Place, ...]:
    """The numbers between other things, each from the first byte that moves on."""
    import numpy as np

    places: list[Place] = []
    firsts: list[int] = []
    end = 0
    for start in map(int, np.flatnonzero(moved)):
        if start < end:
            continue
        place = _number(files, moved, start, end)
        if place is None or len(places) == _MOST_PLACES:
            return ()
        words = b" ".join(_WORD.findall(original[end : place[0]])).decode()
        places.append(Place(*place, words or (places[-1].words if places else "")))
        firsts.append(start)
        end = place[0] + _LENGTHS[place[1]]
    return tuple(places) if _move_freely(files, np.array(firsts)) else ()


def _number(
    files: NDArray[np.uint8], moved: NDArray[np.bool_], start: int, end: int
) -> tuple[int, str] | None:
    """Where the number begins of which ``start`` is the first byte that moves, and its type; the number before it ends at ``end``.

    In double precision more than half of its bytes move; or the three lowest are zero, where it was one in single precision before.
    """
    widened = start - 3
    tried = [(start, "<f8")] if moved[start : start + 4].all() else []
    if widened >= end and not files[:, widened:start].any():
        tried.append((widened, "<f8"))
    tried.append((start, "<f4"))
    for at, dtype in tried:
        content = files[:, at : at + _LENGTHS[dtype]]
        if content.shape[1] == _LENGTHS[dtype] and _are_numbers(_read(content, dtype)).all():
            return at, dtype
    return None


def _read(files: NDArray[np.uint8], dtype: str) -> NDArray[np.float64]:
    """The numbers that the bytes of each row are."""
    import numpy as np

    with np.errstate(all="ignore"):
        return np.stack([np.frombuffer(row.tobytes(), dtype).astype(np.float64) for row in files])


def _are_numbers(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """For each column, whether the values, one of each file, have sizes that numbers have, and nearly the same."""
    import numpy as np

    with np.errstate(all="ignore"):
        sizes = np.abs(values)
        low, high = _SIZES
        usual = np.isfinite(values) & ((sizes == 0) | ((sizes > low) & (sizes < high)))
        return usual.all(0) & (values.max(0) - values.min(0) <= _NEAR * sizes.max(0))


def _move_freely(files: NDArray[np.uint8], firsts: NDArray[np.intp]) -> bool:
    """Whether the lowest bytes of numbers, at ``firsts``, move as those do of which any other value is as likely."""
    import numpy as np

    moves = (files[1:, firsts] - files[0, firsts]).astype(np.int16)  # modulo 256
    small = np.minimum(moves, 256 - moves).max(0) <= _STEP
    return bool(small.mean() <= _MOST_STEPS)


def _other_byte(
    ours: bytes, theirs: bytes, places: Sequence[Place], precision: Precision
) -> int | None:
    """The first byte that differs outside of the numbers at ``places`` and of others that differ by no more than a rounding."""
    import numpy as np

    files = np.stack([np.frombuffer(one, np.uint8) for one in (ours, theirs)])
    differs = files[0] != files[1]
    for place in places:
        differs[place.start : place.start + _LENGTHS[place.dtype]] = False
    end = 0
    for start in map(int, np.flatnonzero(differs)):
        if start < end:
            continue
        found = _number(files, differs, start, end)
        if found is None:
            return start
        end = found[0] + _LENGTHS[found[1]]
        before, after = (float(value) for value in _read(files[:, found[0] : end], found[1])[:, 0])
        if abs(after - before) > precision.relative_error * abs(before):
            return start
    return None
