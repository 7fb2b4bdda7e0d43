"""What is surely a Python number."""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..devices.host_data import HostData
from ..program.syntax import Module
from .resolver import Resolver
from .values import Display, External, Literal, Made, Option, Value

_INTEGERS = frozenset({"builtins.len", "builtins.int"})
_NUMBERS = _INTEGERS | {"builtins.float"}
_OF_NUMBERS = frozenset(
    f"{package}.{name}"
    for package in ("math", "numpy")
    for name in "cos exp exp2 expm1 log log10 log1p log2 pow power sin sqrt tanh".split()
)
"""What gives a number of numbers, and an array only of one."""


def is_number(resolver: Resolver, node: ast.expr, module: Module, *, whole: bool = False) -> bool:
    """Whether ``node`` is an int or float, and not a tensor or an array of one; an int when ``whole``."""
    return _is_number(resolver, node, module, whole, frozenset())


def _is_number(
    resolver: Resolver, node: ast.expr, module: Module, whole: bool, around: frozenset[ast.expr]
) -> bool:
    """``around`` are the expressions that ``node`` is a part of: in a loop, ``rate = 0.9 * rate`` leads back to itself."""
    if node in around:
        return False
    around |= {node}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_number(resolver, node.operand, module, whole, around)
    if isinstance(node, ast.Constant):
        return type(node.value) in ({int} if whole else {int, float})
    if HostData(resolver).is_int(node, module):
        return True
    if isinstance(node, ast.BinOp) and not whole:
        sides = (node.left, node.right)
        return all(_is_number(resolver, side, module, whole, around) for side in sides)
    values = resolver.values(node, module)
    if isinstance(node, ast.Attribute) and any(isinstance(v, Display) for v in values):
        return False  # what others may assign to it from outside is not seen
    return bool(values) and all(_is_number_value(resolver, v, whole, around) for v in values)


def _is_number_value(
    resolver: Resolver, value: Value, whole: bool, around: frozenset[ast.expr]
) -> bool:
    match value:
        case Literal(number):
            return type(number) in ({int} if whole else {int, float})
        case Option(call=call, module=module, default=default):
            kind = call_argument(call, "type")
            names = resolver.names(kind, module) if kind is not None else frozenset[str]()
            may_be_none = isinstance(default, ast.Constant) and default.value is None
            wanted = {"builtins.int"} if whole else {"builtins.int", "builtins.float"}
            return not may_be_none and len(names) == 1 and names <= wanted
        case Display(ast.BinOp() as node, module):
            return not whole and _is_number(resolver, node, module, whole, around)
        case Made(call, module, External(name)) if name in _OF_NUMBERS:
            given = () if whole else call.args
            return bool(given) and all(
                _is_number(resolver, argument, module, whole, around) for argument in given
            )
        case Made(_, _, External(name)):
            return name in (_INTEGERS if whole else _NUMBERS)
        case _:
            return False
