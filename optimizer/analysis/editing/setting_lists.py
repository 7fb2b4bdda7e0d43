"""Lists of settings: plain assignments in lines right below each other, which nothing is put between."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..program.trees import walk


def end_of_settings(statement: ast.stmt, block: Sequence[ast.stmt]) -> ast.stmt:
    """``statement`` of ``block``, or the last of the settings in the lines right below it (``batch_size = 4 * n``)."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return statement
    for following in block[block.index(statement) + 1 :]:
        is_next = following.lineno == (statement.end_lineno or 0) + 1
        if not (is_next and isinstance(following, ast.Assign) and _is_plain(following.value)):
            break
        statement = following
    return statement


def _is_plain(value: ast.expr) -> bool:
    """Whether a setting is written down, or worked out from others: no call makes it."""
    return not any(isinstance(node, ast.Call | ast.Await) for node in walk(value))
