"""The expressions that a function returns, whole or a part of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..program.scopes import Assigned
from ..program.syntax import Module
from ..program.trees import walk
from ..values.unpacking import element_at
from ..values.values import Function


def returned_by(function: Function) -> list[ast.expr | None]:
    """What a function returns, None where it returns nothing, in which case there is no telling."""
    if isinstance(function.node, ast.Lambda):
        return [function.node.body]
    own = [n for n in walk(function.node) if function.module.function(n) is function.node]
    if function.node.name == "__init__" or any(
        isinstance(n, (ast.Yield, ast.YieldFrom)) for n in own
    ):
        return [None]
    return [node.value for node in own if isinstance(node, ast.Return)]


def returned_parts(function: Function, part: int | str) -> list[ast.expr | None]:
    """What ``function`` returns as the part ``part`` of a tuple or list; None where that is not told.

    Of a list that is filled element by element (``res = []``, then ``res.append(..)``) any part may be any element.
    """
    found: list[ast.expr | None] = []
    for value in returned_by(function):
        match value:
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                found.append(element_at(elements, part))
            case ast.Name():
                found += _appended(value, function.module)
            case _:
                found.append(None)
    return found


def _appended(name: ast.Name, module: Module) -> Iterable[ast.expr | None]:
    """The elements of the list ``name``, where all that happens to it is to be made empty, filled and returned."""
    scope = module.scope(name)
    bindings = scope.bindings.get(name.id, [])
    match [binding.source for binding in bindings]:
        case [Assigned(ast.List(elts=[]), ())]:
            pass
        case _:
            return [None]
    found: list[ast.expr] = []
    for use in module.names_of(name.id):
        known = module.scope(use).lookup(name.id)
        if isinstance(use.ctx, ast.Store) or known is None or known[0] is not scope:
            continue
        method = module.parents[use]
        match module.parents[method]:
            case ast.Call(func=func, args=[element]) if func is method:
                if getattr(method, "attr", None) != "append":
                    return [None]
                found.append(element)
            case _ if isinstance(method, ast.Return):
                pass
            case _:
                return [None]
    return found or [None]
