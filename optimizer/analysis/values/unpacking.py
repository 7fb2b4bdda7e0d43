"""Which part of a value each target of an assignment gets.

Positions count from the front, behind a starred target from the end: of ``first, *rest, last = value`` they are ``0``, ``"*"``
and ``-1``. In front of a starred value, or behind it from the end, elements are where they are written; where the two meet, nobody knows.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TypeAlias

Path: TypeAlias = tuple[int | str, ...]
"""Which part of an unpacked value a target gets: positions from the outside in, ``"*"`` for a starred rest."""


def unpacked_targets(target: ast.expr, path: Path = ()) -> list[tuple[ast.expr, Path]]:
    """The names, attributes and items that ``target`` assigns, and which part of the value each gets."""
    if isinstance(target, ast.Starred):
        return unpacked_targets(target.value, (*path, "*"))
    if not isinstance(target, ast.Tuple | ast.List):
        return [(target, path)]
    found: list[tuple[ast.expr, Path]] = []
    position = 0
    for index, element in enumerate(target.elts):
        if isinstance(element, ast.Starred):
            found += unpacked_targets(element, path)
            position = index + 1 - len(target.elts)
        else:
            found += unpacked_targets(element, (*path, position))
            position += 1
    return found


def unpacked_names(target: ast.expr) -> list[tuple[ast.Name, Path]]:
    """The names a target binds and which part of the value each gets; attributes and subscripts bind none."""
    return [(t, path) for t, path in unpacked_targets(target) if isinstance(t, ast.Name)]


def element_at(elements: Sequence[ast.expr], position: int | str) -> ast.expr | None:
    """The element of a display, or of targets, at ``position``; None where there is none, or a star may move it."""
    if not isinstance(position, int) or not -len(elements) <= position < len(elements):
        return None
    passed = elements[: position + 1] if position >= 0 else elements[position:]
    return None if any(isinstance(e, ast.Starred) for e in passed) else elements[position]


def written_part(value: ast.expr | None, path: Path) -> ast.expr | None:
    """The part of ``value`` that ``path`` leads to; None where tuples and lists are not written out as far as that."""
    for position in path:
        if not isinstance(value, ast.Tuple | ast.List):
            return None
        value = element_at(value.elts, position)
    return value


def unpacked_element(value: ast.expr, path: Path) -> ast.expr:
    """What ``path`` leads to in ``value``, as far as tuples and lists are written out: that, or what it is a part of."""
    for position in path:
        element = (
            element_at(value.elts, position) if isinstance(value, ast.Tuple | ast.List) else None
        )
        if element is None:
            return value
        value = element
    return value


def assigned_parts(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """What ``target`` assigns, each with the expression it gets its value, or a part of it, from."""
    return [(t, unpacked_element(value, path)) for t, path in unpacked_targets(target)]
