"""Pictures that a script writes: samples of a generator, plots. Of PNG files the pixels are compared, as numbers that were told with few digits.

A pixel is rounded to a level, as a printed number is to a digit, so a rounding may move it by one. What is beyond that level is judged as an array
is, by how far pixels are from the background. A line that is drawn elsewhere for a rounding moves pixels by more, and so it does in the
original's neighbours: all of its pixels are others where it lies a pixel higher, as they are for any other line. So the means of blocks are judged as well.
(The place of a PNG file's depth: https://www.w3.org/TR/png-3/, sections 5.2 and 11.2.1)
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import io
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

_MODES = frozenset({"L", "LA", "RGB", "RGBA", "I;16"})
"""Whose numbers are levels, of 8 bits or 16; those of a palette are numbers of colours. (Pillow's names of them)"""
_DEPTH = 24
"""Where the bits of a level are told in a PNG file: of colours with 16, Pillow reads 8."""
_TOLD_WITHIN = 1024
"""Bytes ahead of the pixels of a PNG file, in which programs name themselves."""
_MOST_LEVELS = 4_000_000
"""Of a picture that is looked into: its numbers take some hundred megabytes then."""
_BLOCKS = (1, 4, 16)
"""Pixels on a side of what is judged as a whole: one, and as many as lines may move by."""


def pixels(content: bytes) -> NDArray[np.int64] | None:
    """The levels of a PNG file's pixels, by row, column and channel; None of another file, or one that is stored in another way."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as picture:
            narrowed = content[_DEPTH] == 16 and picture.mode != "I;16"
            size = picture.width * picture.height * len(picture.getbands())
            if picture.mode not in _MODES or narrowed or size > _MOST_LEVELS:
                return None
            levels = np.asarray(picture, np.int64)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    return levels.reshape(*levels.shape[:2], -1)


def is_plot(content: bytes) -> bool:
    """Whether matplotlib has drawn a PNG file, as it tells in it: of numbers, not of samples."""
    return b"Matplotlib" in content[:_TOLD_WITHIN]


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

    Without ``rounding`` of the training a level is all that they may be off, unless ``near`` show that those of this picture jump. Then the
    rounding of one sum may make them jump as well, though no further than other training does: what is beyond that is found, of the rest nothing is known.
    """
    if theirs.shape != ours.shape:
        shape, expected = list(theirs.shape), list(ours.shape)
        message = f"{path}: the picture is {shape}, not {expected} (height, width, channels)"
        yield Finding(Kind.FILE_VALUE, message, tensor=path)
        return
    known = [_drawn(ours, one) for one in near if one.shape == ours.shape]
    before, now = _drawn(ours, ours), _drawn(ours, theirs)
    jumps = any(_apart(before, one) for one in known)
    beyond: list[Finding] = []
    if len(known) == len(near):
        compared = (before, now, known if rounding or jumps else (), precision)
        beyond = compare_arrays(Kind.FILE_VALUE, "pixels", f"{path}{{}}".format, *compared)
    if beyond:
        yield replace(beyond[0], tensor=path)
    elif (len(known) < len(near) or (jumps and not rounding)) and _apart(before, now):
        message = f"{path} has other pixels, and how far rounding moves them is not known"
        yield note(Kind.FILE_VALUE, message, tensor=path)


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
