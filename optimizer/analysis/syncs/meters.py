"""Objects of the script's own that keep numbers they are given, such as ``AverageMeter``, and lists of numbers."""

from __future__ import annotations

import ast

from ..calls.reach import lexical_nodes
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Display

_CALCULATIONS = frozenset(
    f"builtins.{name}" for name in "abs float hasattr int isinstance len max min round sum".split()
)
_KEEPING = frozenset({"append", "appendleft", "item", "pop", "popleft"})


def gives_to_meter(resolver: Resolver, statement: ast.stmt, module: Module) -> bool:
    """Whether ``statement`` calls a method that does nothing but keep and calculate with what it is given.

    What the object knows is then the same in all processes as soon as what it is given is.
    """
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    if not isinstance(call.func, ast.Attribute) or any(k.arg is None for k in call.keywords):
        return False
    callees = resolver.callees(call, module)
    return bool(callees) and all(
        isinstance(callee.node, ast.FunctionDef)
        and _only_keeps(resolver, callee.node, callee.module)
        for callee in callees
    )


def appends_to_list(resolver: Resolver, statement: ast.stmt, module: Module) -> bool:
    """Whether ``statement`` does nothing but add to a list of the script's: ``losses.append(loss.item())``."""
    match statement:
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=kept, attr="append"), args=[_], keywords=[])
        ):
            values = resolver.values(kept, module)
            return bool(values) and all(
                isinstance(value, Display) and isinstance(value.node, ast.List) for value in values
            )
        case _:
            return False


def _only_keeps(resolver: Resolver, method: ast.FunctionDef, module: Module) -> bool:
    cls = module.parents[method]
    if not isinstance(cls, ast.ClassDef) or any(
        resolver.names(base, module) != frozenset({"builtins.object"}) for base in cls.bases
    ):
        return False
    keeps = False
    for node in lexical_nodes(method.body):
        match node:
            case ast.Call(func=function):
                names = resolver.names(function, module)
                kept = isinstance(function, ast.Attribute) and function.attr in _KEEPING
                if not (names <= _CALCULATIONS if names else kept):
                    return False
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()):
                keeps = True
            case ast.Name(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                pass
            case ast.Attribute(ctx=ast.Store()) | ast.Global() | ast.Nonlocal() | ast.Yield():
                return False
            case _:
                pass
    return keeps
