"""Walking syntax trees, and what is asked of single nodes everywhere."""

from __future__ import annotations

import ast
from typing import TypeGuard

from ..syntax_tree import child_nodes, walk

__all__ = ["child_nodes", "is_name", "is_none", "walk"]


def is_none(node: ast.AST) -> TypeGuard[ast.Constant]:
    """Whether ``node`` is the literal ``None``."""
    return isinstance(node, ast.Constant) and node.value is None


def is_name(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    """Whether ``node`` is the variable ``name``."""
    return isinstance(node, ast.Name) and node.id == name
