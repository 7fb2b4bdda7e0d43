"""The edits that run statements in a context manager, and those that take a value back to float32."""

from __future__ import annotations

import ast

from ...rewriting.edits import AddContext, FileEdit, Wrap
from ..editing.replacing import replacement
from ..program.syntax import Module
from ..training.loss_regions import Region
from .half_values import HalfUse

_WIDEST_HEADER = 100


def in_context(region: Region, context: str) -> FileEdit:
    """The edit that runs ``region`` in the context manager ``context``."""
    module = region.module
    first, last = module.span(region.first), module.span(region.last)
    if region.first is region.last and _has_room(module, region.first, context):
        return FileEdit(module.path, AddContext(first, context))
    return FileEdit(module.path, Wrap(first, last, f"with {context}:"))


def float_again(use: HalfUse) -> FileEdit:
    """The edit that hands over ``use`` in float32."""
    code = f"{receiver(use.module.code(use.value), use.value)}.float()"
    return replacement(use.module, use.value, code)


def receiver(code: str, node: ast.expr) -> str:
    """``code`` as what a method is called on."""
    return (
        code
        if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        else f"({code})"
    )


def _has_room(module: Module, statement: ast.stmt, context: str) -> bool:
    """Whether ``statement`` is a ``with`` that can hold one more context manager on its line."""
    if not isinstance(statement, ast.With):
        return False
    items = [statement.items[0].context_expr, statement.items[-1].context_expr]
    one_line = items[0].lineno == items[1].end_lineno == statement.lineno
    columns = module.span(items[1]).end_column + len(f", {context}:")
    return one_line and statement.body[0].lineno > statement.lineno and columns <= _WIDEST_HEADER
