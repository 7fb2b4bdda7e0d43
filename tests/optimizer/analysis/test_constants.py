"""Numbers written as expressions."""

from __future__ import annotations

import ast
import math

import pytest

from torchopt_cli.optimizer.analysis.values.constants import constant


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1", 1.0),
        ("-1e9", -1e9),
        ("-2**15", -32768.0),
        ("2**32 - 1", 2.0**32 - 1),
        ("1 * 3", 3.0),
        ("1 / 4", 0.25),
        ("1 / 0", None),
        ("float('-inf')", -math.inf),
        ("float('-1e20')", -1e20),
        ("float('one')", None),
        ("True", None),
        ("x", None),
        ("x + 1", None),
        ("10.0 ** 999", None),
        ("float(x)", None),
        ("'1'", None),
    ],
)
def test_constant(code: str, value: float | None) -> None:
    assert constant(ast.parse(code, mode="eval").body) == value
