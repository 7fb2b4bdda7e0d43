"""Angles made of a matrix product: ``torch.sin(2 * math.pi * x @ frequencies)``, as in Fourier features of positions.

Of an angle of many turns, half precision keeps the turns and loses where in the last of them it ends.
"""

from __future__ import annotations

import ast

from .half_products import operands_of_one_type
from .reaching import assigned_values
from .resolver import Resolver
from .syntax import Module, last_identifier

_WAVES = frozenset({"sin", "cos"})
_SAME_VALUES = frozenset(
    "view reshape unsqueeze squeeze flatten t transpose permute expand repeat repeat_interleave float".split()
)
_JOINED = frozenset({"cat", "concat", "stack"})
_MOST_STEPS = 8


def is_product_angle(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` takes the sine or cosine of a sum or multiple of a matrix product."""
    if not isinstance(node, ast.Call) or last_identifier(node.func) not in _WAVES:
        return False
    angle = _operand(resolver, node, module)
    return angle is not None and _has_product(resolver, angle, module, _MOST_STEPS)


def _operand(resolver: Resolver, call: ast.Call, module: Module) -> ast.expr | None:
    """What ``torch.f(x)`` and ``x.f()`` are about."""
    names = resolver.names(call.func, module)
    if any(name.startswith("torch.") for name in names):
        return call.args[0] if call.args else None
    return call.func.value if isinstance(call.func, ast.Attribute) and not names else None


def _has_product(resolver: Resolver, node: ast.expr, module: Module, steps: int) -> bool:
    if steps == 0:
        return False
    if operands_of_one_type(resolver, node, module):
        return not _is_outer(node)
    parts: list[ast.expr] = []
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
            parts = [left, right]
        case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner):
            parts = [inner]
        case ast.Call(func=function, args=[ast.List() | ast.Tuple() as joined, *_]) if (
            last_identifier(function) in _JOINED
        ):
            parts = joined.elts
        case ast.Call(func=function) if last_identifier(function) in _SAME_VALUES:
            operand = _operand(resolver, node, module)
            parts = [operand] if operand is not None else []
        case ast.Name():
            parts = assigned_values(module, node)
        case _:
            pass
    return any(_has_product(resolver, part, module, steps - 1) for part in parts)


def _is_outer(node: ast.expr) -> bool:
    """Whether ``node`` is an ``einsum`` that sums over nothing: ``einsum("i,j->ij", x, y)`` stays in its type."""
    if not (isinstance(node, ast.Call) and last_identifier(node.func) == "einsum" and node.args):
        return False
    equation = node.args[0]
    if not (isinstance(equation, ast.Constant) and isinstance(equation.value, str)):
        return False
    given, arrow, kept = equation.value.replace(" ", "").partition("->")
    return bool(arrow) and set(given) - {",", "."} <= set(kept)
