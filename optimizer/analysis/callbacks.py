"""Functions that are used as values, and so may be called from anywhere."""

from __future__ import annotations

import ast

from .resolver import Resolver
from .syntax import FunctionNode, last_identifier
from .values import Function


def is_handed_around(resolver: Resolver, function: FunctionNode) -> bool:
    """Whether ``function`` is named anywhere without being called there."""
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Name, ast.Attribute):
            if last_identifier(node) != function.name or not isinstance(node.ctx, ast.Load):
                continue
            parent = module.parents[node]
            if isinstance(parent, ast.Call) and parent.func is node:
                continue
            if any(
                isinstance(value, Function) and value.node is function
                for value in resolver.values(node, module)
            ):
                return True
    return False


def is_property(function: FunctionNode) -> bool:
    """Whether reading an attribute calls ``function``."""
    return any(
        isinstance(d, ast.Name) and d.id in {"property", "cached_property"}
        for d in function.decorator_list
    )
