"""What a text, a dictionary or an argument that is told is put together from."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..program.trees import is_text


def figures(told: ast.expr, *, formatted: bool = False) -> Iterator[tuple[ast.expr, bool]]:
    """The expressions whose values ``told`` is put together from, and whether each is formatted as a number."""
    shown, held = _shown_in(told), _held_in(told)
    if shown is None and held is None:
        yield told, formatted
    for part in shown or ():
        yield from figures(part, formatted=True)
    for part in held or ():
        yield from figures(part)


def _shown_in(text: ast.expr) -> list[ast.expr] | None:
    """What ``text`` formats, None if it is no text made of other things."""
    match text:
        case ast.JoinedStr(values=values):
            return [value.value for value in values if isinstance(value, ast.FormattedValue)]
        case ast.BinOp(left=left, op=ast.Mod(), right=right) if is_text(left):
            return right.elts if isinstance(right, ast.Tuple) else [right]
        case ast.Call(func=ast.Attribute(value=pattern, attr="format")) if is_text(pattern):
            return [*text.args, *(keyword.value for keyword in text.keywords)]
        case _:
            return None


def _held_in(told: ast.expr) -> list[ast.expr] | None:
    """The elements of ``told``, and the texts that it joins; None if it is nothing of that kind."""
    match told:
        case ast.BinOp(left=left, op=ast.Add(), right=right) if is_text(left) or is_text(right):
            return [left, right]
        case ast.Dict(values=elements) | ast.Tuple(elts=elements) | ast.List(elts=elements):
            return elements
        case _:
            return None
