"""Numbers in binary files of a format that is not known: found by what rounding moves, and compared."""

import random
import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from torchopt_cli.optimizer.comparison.raw_numbers import compare_raw, places_of_numbers
from torchopt_cli.optimizer.comparison.tolerance import Precision

Values = Sequence[float]
Write = Callable[[Values], bytes]
VALUES = [0.7 / (1 + step) for step in range(1, 40)]


def records(values: Values, width: str = "f", tag: bytes = b"loss/train") -> bytes:
    """A log as scripts pack it: the length of a name, the name, the step and a value."""
    layout = f"<H{len(tag)}sI{width}"
    return b"".join(
        struct.pack(layout, len(tag), tag, step, value) for step, value in enumerate(values)
    )


def doubles(values: Values) -> bytes:
    return records(values, "d")


def of_single_precision(values: Values) -> bytes:
    """What ``loss.item()`` gives, packed in double precision."""
    return records([float(np.float32(value)) for value in values], "d")


def dumped(values: Values) -> bytes:
    return np.array(values, np.float32).tobytes()


def dumped_doubles(values: Values) -> bytes:
    return np.array(values, np.float64).tobytes()


def behind_a_header(values: Values) -> bytes:
    return b"magic\n3 13\n" + dumped(values)


FORMATS = [records, doubles, of_single_precision, dumped, dumped_doubles, behind_a_header]


def rounded(values: Values, seed: int, by: float = 1e-5) -> Values:
    draw = random.Random(seed)
    return [value * (1 + by * draw.uniform(-1, 1)) for value in values]


def judged(write: Write, theirs: bytes) -> list[tuple[bool, str]]:
    near = [write(rounded(VALUES, seed)) for seed in range(3)]
    found = compare_raw("log.bin", write(VALUES), theirs, near, Precision.FLOAT32)
    return [(finding.fails, finding.message) for finding in found]


@pytest.mark.parametrize("write", FORMATS)
def test_the_same_or_rounded(write: Write) -> None:
    assert judged(write, write(VALUES)) == []
    assert judged(write, write(rounded(VALUES, 7))) == []


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize("place", [0, 11, -1])
def test_one_wrong_number(write: Write, place: int) -> None:
    wrong = [*rounded(VALUES, 7)]
    wrong[place] *= 1.05
    ((fails, message),) = judged(write, write(wrong))
    assert fails
    assert message.startswith("numbers of log.bin: ")


@pytest.mark.parametrize("write", FORMATS)
def test_a_number_less(write: Write) -> None:
    ((fails, message),) = judged(write, write(VALUES[:-1]))
    assert fails
    assert "bytes, not" in message


def test_another_word_between_the_numbers() -> None:
    told = judged(records, records(rounded(VALUES, 7), tag=b"loss/valid"))
    assert told == [
        (True, "log.bin has other bytes from the one at 7 on, where rounding moves none")
    ]


def with_rates(values: Values, rate: float) -> bytes:
    return records(values) + records([rate, rate / 2], tag=b"rate")


@pytest.mark.parametrize(
    ("rate", "passes"), [(0.03, True), (0.03 * (1 + 3e-7), True), (0.04, False)]
)
def test_a_number_that_rounding_does_not_move(rate: float, passes: bool) -> None:
    """A learning rate is the same in every neighbour, or is off by less than they are told in."""
    told = judged(lambda values: with_rates(values, 0.03), with_rates(rounded(VALUES, 7), rate))
    assert [fails for fails, _ in told] == ([] if passes else [True])


def test_how_a_container_is_laid_out_is_no_value() -> None:
    def container(values: Values) -> bytes:
        return b"\x89HDF\r\n\x1a\n" + dumped(values)

    told = judged(container, container(VALUES) + bytes(512))
    assert told == [(False, "log.bin has other bytes, and is not compared")]


def test_values_of_different_sizes_are_judged_apart() -> None:
    def both(values: Values) -> bytes:
        rates = [1e-4 * value for value in values]
        return b"".join(
            records([value], tag=b"norm") + records([rate], tag=b"rate")
            for value, rate in zip(values, rates, strict=True)
        )

    wrong = rounded(VALUES, 7)
    content = b"".join(
        records([value], tag=b"norm") + records([2e-4 * value], tag=b"rate") for value in wrong
    )
    ((fails, _),) = judged(both, content)
    assert fails


def pixels(values: Values) -> bytes:
    return b"P5 13 3 255\n" + bytes(int(255 * value) for value in values)


def packed(values: Values) -> bytes:
    return zlib.compress(repr(list(values)).encode())


@pytest.mark.parametrize("write", [pixels, packed])
def test_pictures_and_what_is_packed_are_not_understood(write: Write) -> None:
    near = [write(rounded(VALUES, seed, by=1e-2)) for seed in range(3)]
    assert any(one != write(VALUES) for one in near)
    assert places_of_numbers(write(VALUES), near) == ()
    other = write(rounded(VALUES, 9, by=0.2))
    found = list(compare_raw("a.bin", write(VALUES), other, near, Precision.FLOAT32))
    assert [(one.fails, one.message) for one in found] == [
        (False, "a.bin has other bytes, and is not compared")
    ]


def test_without_neighbours_that_move_nothing_is_understood() -> None:
    assert places_of_numbers(dumped(VALUES), []) == ()
    assert places_of_numbers(dumped(VALUES), [dumped(VALUES)]) == ()
    assert places_of_numbers(dumped(VALUES), [dumped(VALUES[1:])]) == ()
