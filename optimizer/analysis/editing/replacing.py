"""The edit of one expression where it stands."""

from __future__ import annotations

import ast

from ...rewriting.edits import FileEdit, ReplaceExpression
from ..program.syntax import Module


def replacement(module: Module, node: ast.expr, code: str) -> FileEdit:
    """``code`` instead of the expression ``node`` of ``module``."""
    return FileEdit(module.path, ReplaceExpression(module.span(node), code))
