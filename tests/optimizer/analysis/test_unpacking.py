"""Which part of a value each target gets, with stars on either side."""

from __future__ import annotations

import ast

import pytest

from torchopt_cli.optimizer.analysis.values.unpacking import (
    assigned_parts,
    unpacked_names,
    written_part,
)


def _assignment(code: str) -> tuple[ast.expr, ast.expr]:
    statement = ast.parse(code).body[0]
    assert isinstance(statement, ast.Assign)
    return statement.targets[0], statement.value


@pytest.mark.parametrize(
    ("target", "paths"),
    [
        ("a", {"a": ()}),
        ("a, (b, c)", {"a": (0,), "b": (1, 0), "c": (1, 1)}),
        ("a, *b", {"a": (0,), "b": ("*",)}),
        ("*a, b, c", {"a": ("*",), "b": (-2,), "c": (-1,)}),
        ("[a, *b, (c, *d)]", {"a": (0,), "b": ("*",), "c": (-1, 0), "d": (-1, "*")}),
        ("self.a, b[0], c", {"c": (2,)}),
    ],
)
def test_positions_behind_a_star_count_from_the_end(
    target: str, paths: dict[str, tuple[object, ...]]
) -> None:
    found = unpacked_names(_assignment(f"{target} = value")[0])
    assert {name.id: path for name, path in found} == paths


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("a, b = x, y", {"a": "x", "b": "y"}),
        ("a, (b, c) = x, (y, z)", {"a": "x", "b": "y", "c": "z"}),
        ("a, (b, c) = x, y", {"a": "x", "b": None, "c": None}),
        ("a, b = *pair, 0", {"a": None, "b": None}),
        ("a, b, c = x, *pair", {"a": "x", "b": None, "c": None}),
        ("a, *b, c = x, y, z", {"a": "x", "b": None, "c": "z"}),
        ("a, *b, c = x, *pair, z", {"a": "x", "b": None, "c": "z"}),
        ("*a, b, c = *pair, z", {"a": None, "b": None, "c": "z"}),
        ("a, b, c = x, y", {"a": "x", "b": "y", "c": None}),
        ("*a, b, c, d = x, y", {"a": None, "b": None, "c": "x", "d": "y"}),
    ],
)
def test_what_a_star_may_move_is_not_known(code: str, parts: dict[str, str | None]) -> None:
    target, value = _assignment(code)
    for name, path in unpacked_names(target):
        part = written_part(value, path)
        assert (ast.unparse(part) if part is not None else None) == parts[name.id]


def test_what_is_not_written_out_is_part_of_what_is() -> None:
    pairs = assigned_parts(*_assignment("a, (b, *self.c), d = x, y, *z"))
    told = [(ast.unparse(target), ast.unparse(value)) for target, value in pairs]
    assert told == [("a", "x"), ("b", "y"), ("self.c", "y"), ("d", "(x, y, *z)")]
