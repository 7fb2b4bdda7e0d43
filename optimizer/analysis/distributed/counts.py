"""Whole numbers of samples: what comparisons find true, and their sums."""

from __future__ import annotations

import ast

from ..editing.bound_names import is_imported
from ..program.scopes import Assigned, Binding, Untraceable
from ..program.syntax import Module
from ..tensors.tensor_functions import INTEGER_FUNCTIONS

_MADE_WHOLE = frozenset({"long", "int", "bool"})
_STILL_WHOLE = frozenset(
    "sum prod cumsum max min item cpu cuda to detach clone squeeze unsqueeze view reshape flatten contiguous "
    "view_as type_as float double".split()
)


def is_count(node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is made of comparisons (``predictions.eq(labels).sum()``), which are as exact in any type."""
    return _is_count(node, module, frozenset())


def _is_count(node: ast.expr, module: Module, seen: frozenset[ast.AST]) -> bool:
    match node:
        case ast.Compare():
            return True
        case ast.Constant(value=value):
            return type(value) is int or (type(value) is float and value.is_integer())
        case ast.Call(func=ast.Attribute(value=receiver, attr=last)):
            if last in INTEGER_FUNCTIONS | _MADE_WHOLE:
                return True
            if last not in _STILL_WHOLE:
                return False
            is_function = is_imported(receiver, module) and node.args
            return _is_count(node.args[0] if is_function else receiver, module, seen)
        case ast.Attribute(value=value, attr="data"):
            return _is_count(value, module, seen)
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult() | ast.BitAnd() | ast.BitOr()):
            return _is_count(left, module, seen) and _is_count(node.right, module, seen)
        case ast.Name() if node not in seen:
            found = module.scope(node).lookup(node.id)
            return found is not None and all(
                _adds_counts(binding, module, seen | {node}) for binding in found[1]
            )
        case _:
            return False


def _adds_counts(binding: Binding, module: Module, seen: frozenset[ast.AST]) -> bool:
    """Whether all that ``binding`` gives its name are counts, or adds of them."""
    statement = module.parents.get(binding.node)
    match binding.source:
        case Assigned(value, ()):
            return _is_count(value, module, seen)
        case Untraceable() if isinstance(statement, ast.AugAssign):
            return isinstance(statement.op, ast.Add) and _is_count(statement.value, module, seen)
        case _:
            return False
