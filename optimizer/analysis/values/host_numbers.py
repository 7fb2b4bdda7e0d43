"""What is surely a Python number."""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..devices.host_data import HostData
from ..program.syntax import Module
from .resolver import Resolver
from .values import External, Literal, Made, Option, Value

_INTEGERS = frozenset({"builtins.len", "builtins.int"})
_NUMBERS = _INTEGERS | {"builtins.float"}


def is_number(resolver: Resolver, node: ast.expr, module: Module, *, whole: bool = False) -> bool:
    """Whether ``node`` is an int or float, and not a tensor or an array of one; an int when ``whole``."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return is_number(resolver, node.operand, module, whole=whole)
    if isinstance(node, ast.Constant):
        return type(node.value) in ({int} if whole else {int, float})
    if HostData(resolver).is_int(node, module):
        return True
    if isinstance(node, ast.BinOp) and not whole:
        return is_number(resolver, node.left, module) and is_number(resolver, node.right, module)
    values = resolver.values(node, module)
    return bool(values) and all(_is_number_value(resolver, value, whole) for value in values)


def _is_number_value(resolver: Resolver, value: Value, whole: bool) -> bool:
    match value:
        case Literal(number):
            return type(number) in ({int} if whole else {int, float})
        case Option(call=call, module=module, default=default):
            kind = call_argument(call, "type")
            names = resolver.names(kind, module) if kind is not None else frozenset[str]()
            may_be_none = isinstance(default, ast.Constant) and default.value is None
            wanted = {"builtins.int"} if whole else {"builtins.int", "builtins.float"}
            return not may_be_none and len(names) == 1 and names <= wanted
        case Made(_, _, External(name)):
            return name in (_INTEGERS if whole else _NUMBERS)
        case _:
            return False
