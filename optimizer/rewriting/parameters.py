"""The edit of a function's signature."""

from __future__ import annotations

import ast
import re
import tokenize

from .comma_list import CommaList
from .edits import AddParameter
from .lines import line_starts, tokens
from .rewrites import EditError, Rank, Rewrite
from .source_tree import SourceTree
from .style import Style

_NAME = re.compile(r"[^\W\d]\w*")


def parameter_rewrite(source: SourceTree, edit: AddParameter, style: Style) -> Rewrite:
    """What ``edit`` does to the parameters of a function. Raises EditError when it cannot be done."""
    function = source.find(ast.FunctionDef, edit.function) or source.find(
        ast.AsyncFunctionDef, edit.function
    )
    if function is None:
        raise EditError(edit, "no function there")
    start, end = _parameters(source, function)

    def add(text: str) -> str:
        listed = CommaList.parse(text)
        names = [match[0] if (match := _NAME.match(item)) else "" for item in listed.items]
        if edit.after not in names:
            raise EditError(edit, f"no parameter {edit.after} there")
        index = names.index(edit.after) + 1
        return listed.insert(index, edit.name, style.newline, style.indent).text

    return Rewrite(start, end, add, edit, Rank.EXPRESSION)


def _parameters(
    source: SourceTree, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> tuple[int, int]:
    """The offsets of the brackets around the parameters of ``function``, both included."""
    start, end = source.range(function)
    text = source.text[start:end]
    starts = line_starts(text)
    depth, opening, square = 0, 0, 0
    for token in tokens(text):
        if token.type != tokenize.OP or token.string not in "()[]":
            continue
        at = starts[token.start[0] - 1] + token.start[1]
        if token.string in "[]" and depth == 0:
            square += 1 if token.string == "[" else -1  # type parameters
        elif token.string == "(" and square == 0:
            opening = at if depth == 0 else opening
            depth += 1
        elif token.string == ")" and square == 0:
            depth -= 1
            if depth == 0:
                return start + opening, start + at + 1
    raise AssertionError("a function has parameters")
