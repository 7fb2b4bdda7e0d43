"""Pictures that a script writes: samples of a generator, plots. Of PNG files the pixels are compared, as numbers that were told with few digits.

A pixel is rounded to a level, as a printed number is to a digit, so a rounding may move it by one. What is beyond that level is judged as an array
is, by how far pixels are from the background. A line that is drawn elsewhere for a rounding moves pixels by more, and so it does in the
original's neighbours: all of its pixels are others where it lies a pixel higher, as they are for any other line. So the means of blocks are judged as well.
(https://www.w3.org/TR/png-3/, sections 5.2, 9.2 and 11.2.1)
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .arrays import compare_arrays, differing
from .findings import Finding, Kind, note
from .tolerance import Precision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .arrays import Arrays

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""Numbers of a pixel by the colour type: grey, colours, both with transparency. One of a palette is the number of a colour."""
_BYTES = {8: 1, 16: 2}
_MOST_BYTES = 4_000_000
"""Of a picture that is looked into: undoing PNG's filters takes some seconds then."""
_BLOCKS = (1, 4, 16)
"""Pixels on a side of what is judged as a whole: one, and as many as lines may move by."""


def pixels(content: bytes) -> NDArray[np.int64] | None:
    """The levels of a PNG file's pixels, by row, column and channel; None of another file, or one that is stored in another way."""
    if not content.startswith(_SIGNATURE):
        return None
    try:
        chunks = list(_chunks(content))
        width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
        if colour not in _CHANNELS or depth not in _BYTES or interlaced:
            return None
        channels, size = _CHANNELS[colour], _BYTES[depth]
        length = width * channels * size
        if not 0 < height * length <= _MOST_BYTES:
            return None
        packed = zlib.decompress(b"".join(data for name, data in chunks if name == b"IDAT"))
    except (IndexError, struct.error, zlib.error):
        return None
    return _levels(packed, height, length, channels, size)


def compare_pictures(
    path: str,
    ours: NDArray[np.int64],
    theirs: NDArray[np.int64],
    near: Sequence[NDArray[np.int64]],
    precision: Precision,
    *,
    rounding: bool = True,
) -> Iterator[Finding]:
    """Where pixels are further off than rounding takes them; a note where that is not known.

    Without ``rounding`` a level is all that they may be off, unless ``near`` show that those of this picture jump.
    """
    if theirs.shape != ours.shape:
        shape, expected = list(theirs.shape), list(ours.shape)
        message = f"{path}: the picture is {shape}, not {expected} (height, width, channels)"
        yield Finding(Kind.FILE_VALUE, message, tensor=path)
        return
    known = [_drawn(ours, one) for one in near if one.shape == ours.shape]
    before, now = _drawn(ours, ours), _drawn(ours, theirs)
    jumps = any(_apart(before, one) for one in known)
    if len(known) < len(near) or (jumps and not rounding):
        if _apart(before, now):
            message = f"{path} has other pixels, and how far rounding moves them is not known"
            yield note(Kind.FILE_VALUE, message, tensor=path)
        return
    compared = (before, now, known if rounding else (), precision)
    found = compare_arrays(Kind.FILE_VALUE, "pixels", f"{path}{{}}".format, *compared)
    yield from (replace(finding, tensor=path) for finding in found[:1])


def _drawn(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """How far the pixels of ``theirs``, each a level nearer to ``ours``, are from the background of that, singly and by the means of blocks."""
    import numpy as np

    levels = theirs - np.sign(theirs - ours) - _background(ours)
    height, width, _ = levels.shape
    found: dict[str, NDArray[np.float64]] = {}
    for side in _BLOCKS:
        rows, columns = (np.arange(0, length, side) for length in (height, width))
        sums = np.add.reduceat(np.add.reduceat(levels, rows, axis=0), columns, axis=1)
        found[f", in blocks of {side}" if side > 1 else ""] = sums / side**2
    return found


def _background(levels: NDArray[np.int64]) -> NDArray[np.intp]:
    """The level of most pixels in each channel."""
    import numpy as np

    each = levels.reshape(-1, levels.shape[2])
    return np.array([np.bincount(channel).argmax() for channel in each.T])


def _apart(one: Arrays, other: Arrays) -> bool:
    return next(differing(one, other), None) is not None


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The names of a file's chunks with what is in them."""
    at = len(_SIGNATURE)
    while at + 8 <= len(content):
        length, name = struct.unpack_from(">I4s", content, at)
        yield name, content[at + 8 : at + 8 + length]
        at += 12 + length  # with the checksum behind


def _levels(
    packed: bytes, height: int, length: int, channels: int, size: int
) -> NDArray[np.int64] | None:
    """The pixels of as many rows of this ``length`` in bytes, each behind the number of its filter."""
    import numpy as np

    if len(packed) != height * (length + 1):
        return None
    rows = np.frombuffer(packed, np.uint8).reshape(height, length + 1)
    plain = np.zeros((height, length), np.uint8)
    above = np.zeros(length, np.uint8)
    for number, row in enumerate(rows):
        above = plain[number] = _unfiltered(int(row[0]), row[1:], above, channels * size)
    levels = plain.reshape(height, -1, channels, size).astype(np.int64)
    return levels[..., 0] if size == 1 else levels[..., 0] * 256 + levels[..., 1]


def _unfiltered(
    kind: int, row: NDArray[np.uint8], above: NDArray[np.uint8], step: int
) -> NDArray[np.uint8]:
    """The bytes of ``row``, of which the differences were stored from those that are foretold by the byte ``step`` before and the row ``above``."""
    import numpy as np

    if kind == 0:
        return row
    if kind == 1:
        return np.cumsum(row.reshape(-1, step), axis=0, dtype=np.uint8).reshape(-1)
    if kind == 2:
        return row + above
    up = above.tolist()
    found = [0] * step + row.tolist()
    corner = [0] * step + up
    for place in range(step, len(found)):
        left, over = found[place - step], up[place - step]
        foretold = (left + over) // 2 if kind == 3 else _nearest(left, over, corner[place - step])
        found[place] = (found[place] + foretold) & 255
    return np.array(found[step:], np.uint8)


def _nearest(left: int, over: int, corner: int) -> int:
    """Paeth's foretelling: which of the three is nearest to ``left + over - corner``."""
    to_left, to_over = abs(over - corner), abs(left - corner)
    to_corner = abs(left + over - 2 * corner)
    if to_left <= to_over and to_left <= to_corner:
        return left
    return over if to_over <= to_corner else corner
