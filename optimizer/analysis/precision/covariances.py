"""Differences of covariances and Gram matrices: ``x.t() @ x - (ones @ x).t() @ (ones @ x) / n``.

Both sides are products of a tensor with itself, of much the same size: what is left of them is the rounding of the products where
these are computed in half precision or in TF32.
"""

from __future__ import annotations

import ast

from ..program.reaching import assigned_values
from ..program.syntax import Module, last_identifier
from ..values.resolver import Resolver
from .half_products import operands_of_one_type

_TURNED = frozenset({"t", "transpose", "permute", "swapaxes", "contiguous", "conj", "adjoint"})
_TURNING = frozenset({"T", "mT", "H", "mH"})
_DIFFERENCES = frozenset({"sub", "subtract"})
_ARITHMETIC = _DIFFERENCES | {"add", "mul", "multiply", "div", "divide", "true_divide"}
_MOST_STEPS = 8


def is_covariance_difference(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` subtracts one product of a tensor with itself from another."""
    sides = _subtracted(resolver, node, module)
    products = SelfProducts(resolver, module)
    return len(sides) == 2 and all(products.in_terms(side) for side in sides)


def _subtracted(resolver: Resolver, node: ast.AST, module: Module) -> list[ast.expr]:
    """Both sides of ``x - y``, ``torch.sub(x, y)`` or ``torch.add(x, -1 * y)``; nothing of what is none."""
    match node:
        case ast.BinOp(left, ast.Sub(), right):
            return [left, right]
        case ast.Call(func=function):
            name = last_identifier(function)
            sides = _operands(resolver, node, module) if name in _DIFFERENCES | {"add"} else []
            return sides if name != "add" or any(map(_is_negative, sides)) else []
        case _:
            return []


def _operands(resolver: Resolver, call: ast.Call, module: Module) -> list[ast.expr]:
    """The tensors of ``torch.sub(x, y)`` and ``x.sub(y)``, and what ``x.t()`` is about."""
    if isinstance(call.func, ast.Attribute) and not resolver.names(call.func, module):
        return [call.func.value, *call.args]
    return list(call.args)


def _is_negative(node: ast.expr) -> bool:
    """Whether the sign of ``-x`` or ``-1 * x`` is turned."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        return _is_negative(node.left) or _is_negative(node.right)
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


class SelfProducts:
    """Follows terms through the variables of their function, to products of a tensor with itself (``x @ x.t()``)."""

    def __init__(self, resolver: Resolver, module: Module) -> None:
        self._resolver, self._module = resolver, module

    def in_terms(self, node: ast.expr, steps: int = _MOST_STEPS) -> bool:
        """Whether a term or a factor of ``node`` is such a product."""
        if steps == 0:
            return False
        if self._is_of_itself(node):
            return True
        match node:
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
                parts = [left, right]
            case ast.UnaryOp(operand=inner):
                parts = [inner]
            case ast.Name():
                parts = assigned_values(self._module, node)
            case ast.Call(func=function) if last_identifier(function) in _ARITHMETIC:
                parts = _operands(self._resolver, node, self._module)
            case _:
                parts = []
        return any(self.in_terms(part, steps - 1) for part in parts)

    def _is_of_itself(self, node: ast.expr) -> bool:
        operands = operands_of_one_type(self._resolver, node, self._module)
        if len(operands) != 2:
            return False
        first, second = map(self._upright, operands)
        return ast.dump(first) == ast.dump(second)

    def _upright(self, node: ast.expr, steps: int = _MOST_STEPS) -> ast.expr:
        """The tensor that ``node`` is a transposition of, or ``node`` itself."""
        turned: list[ast.expr] = []
        match node:
            case ast.Attribute(value=inner, attr=name) if name in _TURNING:
                turned = [inner]
            case ast.Call(func=function) if last_identifier(function) in _TURNED:
                turned = _operands(self._resolver, node, self._module)[:1]
            case ast.Name():
                turned = assigned_values(self._module, node)
            case _:
                pass
        if len(turned) != 1 or steps == 0:
            return node
        upright = self._upright(turned[0], steps - 1)
        is_variable = not isinstance(node, ast.Name) or isinstance(upright, ast.Name)
        return upright if is_variable else node
