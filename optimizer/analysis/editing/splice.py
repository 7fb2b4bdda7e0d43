"""Composes the new text of an expression from its old text, so that layout and comments inside it survive."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from ..program.syntax import Module


@dataclass(frozen=True)
class Piece:
    """``text`` instead of the characters from ``start`` to ``end`` of the file (offsets of :func:`offset`)."""

    start: int
    end: int
    text: str


def offset(module: Module, line: int, column: int) -> int:
    """Where a place stands in the text of ``module``, its line breaks counted as one character."""
    return sum(len(text) + 1 for text in module.lines[: line - 1]) + column


def bounds(module: Module, node: ast.AST) -> tuple[int, int]:
    """Where ``node`` starts and ends, without its parentheses."""
    span = module.span(node)
    return (
        offset(module, span.line, span.column),
        offset(module, span.end_line, span.end_column),
    )


def spliced(module: Module, root: ast.expr, pieces: Iterable[Piece]) -> str:
    """The code of ``root`` with ``pieces`` put in place; pieces must not overlap."""
    start, end = bounds(module, root)
    text = "\n".join(module.lines)
    parts: list[str] = []
    at = start
    for piece in sorted(pieces, key=lambda p: (p.start, p.end)):
        parts += [text[at : piece.start], piece.text]
        at = piece.end
    return "".join([*parts, text[at:end]])


def added_argument(module: Module, call: ast.Call, argument: str) -> Piece | None:
    """``argument`` added behind the last one of ``call``, in the layout of the call; None where comments are in the way."""
    text = "\n".join(module.lines)
    close = bounds(module, call)[1] - 1
    at = close
    while text[at - 1].isspace():
        at -= 1
    line_start = text.rfind("\n", 0, at) + 1
    if "#" in text[line_start:close]:
        return None
    if text[at - 1] == "(":
        return Piece(at, at, argument)
    if text[at - 1] != ",":
        return Piece(at, at, f", {argument}")
    if "\n" not in text[at:close]:
        return Piece(at, close, f" {argument}")
    indent = text[line_start : len(text)]
    indent = indent[: len(indent) - len(indent.lstrip())]
    return Piece(at, at, f"\n{indent}{argument},")


def without_keyword(module: Module, call: ast.Call, keyword: ast.keyword) -> Piece:
    """``keyword`` taken out of ``call`` with the comma that goes with it."""
    text = "\n".join(module.lines)
    start, end = bounds(module, keyword)
    before = start
    while text[before - 1].isspace():
        before -= 1
    if text[before - 1] == ",":
        return Piece(before - 1, end, "")
    while text[end].isspace() or text[end] == ",":
        end += 1
    return Piece(start, end, "")


def without_method(module: Module, call: ast.Call) -> Piece:
    """The method call ``x.method(..)`` reduced to ``x``."""
    assert isinstance(call.func, ast.Attribute)
    text = "\n".join(module.lines)
    dot = bounds(module, call.func)[1] - len(call.func.attr)
    while text[dot] != ".":
        dot -= 1
    while text[dot - 1].isspace() or text[dot - 1] == "\\":
        dot -= 1
    return Piece(dot, bounds(module, call)[1], "")
