"""Numbers printed with more digits."""

from __future__ import annotations

import contextlib
import io

import pytest

from torchopt_cli.optimizer.execution.probe.more_digits import compiled

X = "x = 1.23456789012345\n"


def printed(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compiled(X + code, "script.py"), {})
    return out.getvalue().strip()


@pytest.mark.parametrize(
    "code",
    [
        """print(f"{2:d} {x:,.4f} {'abc':.2}")""",
        """print(f"{2:d} {x:{9}.4f} {'abc':.2}")""",
        'print("{:d} {:.4f} {:.2}".format(2, x, "abc"))',
        'print("%d %.4f %.2s" % (2, x, "abc"))',
        'print("%(n)d %(x).4f %(s).2s" % {"n": 2, "x": x, "s": "abc"})',
        'print(2, format(x, ".4f"), "ab")',
        'import logging, sys\nlogging.basicConfig(stream=sys.stdout, format="%(message)s", force=True)\n'
        'logging.getLogger("run").warning("%d %.4f %.2s", 2, x, "abc")',
    ],
    ids=["f-string", "width", "format", "percent", "names", "function", "logged"],
)
def test_what_a_format_says_of_numbers(code: str) -> None:
    assert printed(code).split() == ["2", "1.234567890123", "ab"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('print(f"{x:f} {x:g}")', "1.23456789012345 1.2345678901235"),
        ('print(f"{x:.1%}")', "123.456789012%"),
        ('print("%.1f%%" % x)', "1.234567890%"),
        ('print(f"{x:.2e}")', "1.2345678901e+00"),
    ],
)
def test_kinds_of_numbers(code: str, expected: str) -> None:
    assert printed(code) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('print(f"{x}"[:4], f"{7:5}", f"{7:03d}")', "1.23     7 007"),
        (
            'import datetime\nprint(f"{datetime.datetime(2024, 5, 6):%H:%M:%S.%f}")',
            "00:00:00.000000",
        ),
        ('print(7 % 4, "ab %d" % 3, "{0}/{1:>3}".format(1, 2))', "3 ab 3 1/  2"),
        ('print("{:.2f} stays".upper())', "{:.2F} STAYS"),
    ],
)
def test_everything_else_stays(code: str, expected: str) -> None:
    assert printed(code) == expected


def test_lines_keep_their_numbers() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        exec(compiled("print(\n    f'{1:.2f}',\n)\n1 / 0\n", "script.py"), {})
    assert error.traceback[-1].lineno == 3
