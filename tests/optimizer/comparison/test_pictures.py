"""Pictures, pixel by pixel."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from torchopt_cli.optimizer.comparison.pictures import compare_pictures, pixels
from torchopt_cli.optimizer.comparison.tolerance import Precision

SMOOTH = np.add.outer(np.arange(40) * 3, np.arange(30) * 2)[..., None] + np.arange(4) * 5
NOISE = np.random.default_rng(0).integers(0, 256, (40, 30, 4))
GREY = SMOOTH[..., :1].astype(np.int64)


def written(levels: np.ndarray, mode: str, **how: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(levels, mode).save(file, "PNG", **how)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("levels", [SMOOTH, NOISE, SMOOTH // 2 + NOISE // 32])
def test_pixels_are_those_of_the_picture(levels: np.ndarray, mode: str) -> None:
    shown = levels[..., : len(mode)].astype(np.uint8)
    found = pixels(written(shown[..., 0] if mode == "L" else shown, mode))
    assert found is not None
    assert (found == shown).all()


def test_levels_of_sixteen_bits() -> None:
    levels = (GREY[..., 0] * 300).astype(np.uint16)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    found = pixels(file.getvalue())
    assert found is not None
    assert (found[..., 0] == levels).all()


def test_colours_of_sixteen_bits_are_not_looked_into() -> None:
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(7))),
        (b"IEND", b""),
    ]
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in parts:
        content += struct.pack(">I4s", len(data), name) + data
        content += struct.pack(">I", zlib.crc32(name + data))
    assert Image.open(io.BytesIO(content)).getpixel((0, 0)) == (0, 0, 0)
    assert pixels(content) is None


def test_what_is_no_such_picture_is_not_looked_into() -> None:
    palette = io.BytesIO()
    Image.fromarray(GREY[..., 0].astype(np.uint8), "L").convert("P").save(palette, "PNG")
    whole = written(GREY[..., 0].astype(np.uint8), "L")
    for content in (b"", b"GIF89a", palette.getvalue(), whole[:30], whole[:-40]):
        assert pixels(content) is None


def judged(theirs: np.ndarray, *near: np.ndarray, rounding: bool = True) -> list[tuple[bool, str]]:
    found = compare_pictures("p.png", GREY, theirs, near, Precision.FLOAT32, rounding=rounding)
    return [(finding.fails, finding.message) for finding in found]


def moved(places: int, by: int) -> np.ndarray:
    other = GREY.copy()
    other[:places, 0] += by
    return other


def test_a_level_is_rounding() -> None:
    assert judged(moved(40, 1), GREY, GREY) == []
    assert judged(moved(40, -1), rounding=False) == []


def test_another_picture_is_found() -> None:
    for rounding in (True, False):
        ((fails, message),) = judged(moved(10, 30), GREY, GREY, rounding=rounding)
        assert fails
        assert message.startswith("pixels of p.png: ")


def test_what_jumps_in_the_neighbours_may_jump() -> None:
    assert judged(moved(10, 30), moved(5, 30), moved(1, 9)) == []
    assert judged(moved(40, 90), moved(5, 30), moved(1, 9)) != []


def test_nothing_is_known_of_what_jumps_where_only_sums_are_rounded() -> None:
    ((fails, message),) = judged(moved(10, 30), moved(5, 30), rounding=False)
    assert not fails
    assert "not known" in message
    assert judged(GREY, moved(5, 30), rounding=False) == []


def test_no_sum_makes_pixels_jump_further_than_other_training() -> None:
    ((fails, message),) = judged(moved(40, 90), moved(5, 30), moved(1, 9), rounding=False)
    assert fails
    assert message.startswith("pixels of p.png: ")


def test_another_size_is_another_picture() -> None:
    ((fails, message),) = judged(GREY[:20], GREY)
    assert fails
    assert message == (
        "p.png: the picture is [20, 30, 1], not [40, 30, 1] (height, width, channels)"
    )


def test_a_size_that_rounding_changes_tells_nothing() -> None:
    ((fails, _),) = judged(moved(10, 30), GREY[:20])
    assert not fails


def line(height: int) -> np.ndarray:
    """A curve that is as high as that in the middle, on white."""
    shown = np.full((60, 80, 1), 255)
    columns = np.arange(80)
    shown[(10 + height * np.sin(columns / 80 * np.pi)).astype(int), columns] = 0
    return shown


def test_a_line_that_rounding_moves_is_no_other_line() -> None:
    near = [line(31), line(29)]

    def failed(theirs: np.ndarray) -> list[str]:
        found = compare_pictures("p.png", line(30), theirs, near, Precision.FLOAT32)
        return [finding.message for finding in found if finding.fails]

    assert failed(line(32)) == []
    (message,) = failed(line(5))
    assert message.startswith("pixels of p.png, in blocks of ")
