"""What is printed."""

from __future__ import annotations

import ast

from ..program.syntax import Module
from ..values.resolver import Resolver


def is_printed(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` goes to ``print`` and nowhere else: as it is, in a text, or through built-in functions."""
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.stmt):
            return False
        if isinstance(ancestor, ast.Call):
            names = resolver.names(ancestor.func, module)
            if "builtins.print" in names:
                return True
            if not _makes_text(ancestor) and not _are_builtin(names):
                return False
    return False


def _makes_text(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Constant(value=str()), attr="format" | "join"):
            return True
        case _:
            return False


def _are_builtin(names: frozenset[str]) -> bool:
    return bool(names) and all(name.startswith("builtins.") for name in names)
