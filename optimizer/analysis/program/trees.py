"""Walking syntax trees, and what is asked of single nodes everywhere."""

from __future__ import annotations

import ast
from typing import TypeGuard

from ...syntax_tree import child_nodes, walk

__all__ = ["child_nodes", "is_name", "is_none", "is_text", "is_true", "position", "walk"]


def position(node: ast.AST) -> tuple[int, int]:
    """Line and column where ``node`` begins, to sort by: several nodes may share a line. (0, 0) for a whole file."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def is_none(node: ast.AST) -> TypeGuard[ast.Constant]:
    """Whether ``node`` is the literal ``None``."""
    return isinstance(node, ast.Constant) and node.value is None


def is_true(node: ast.AST | None) -> bool:
    """Whether ``node`` is the literal ``True``."""
    return isinstance(node, ast.Constant) and node.value is True


def is_name(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    """Whether ``node`` is the variable ``name``."""
    return isinstance(node, ast.Name) and node.id == name


def is_text(node: ast.AST) -> bool:
    """Whether ``node`` is a text by its form: ``"a"``, ``f"a{b}"``, ``"a{}".format(b)``, ``"a%d" % b``."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
            return is_text(left) or is_text(right)
        case ast.Call(func=ast.Attribute(value=text, attr="format")):
            return is_text(text)
        case ast.Call(func=ast.Name(id="str")):
            return True
        case _:
            return False
