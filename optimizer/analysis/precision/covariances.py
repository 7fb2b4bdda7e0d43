"""Differences of covariances and Gram matrices: ``x.t() @ x - (ones @ x).t() @ (ones @ x) / n``, ``mse_loss(gram(x), gram(y))``.

Both sides are products of a tensor with itself, of much the same size: what is left of them is the rounding of the products where
these are computed in half precision or in TF32. So is what is left of a matrix that is kept orthogonal: ``w @ w.t() - torch.eye(n)``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..program.classes import kept_as
from ..program.reaching import assigned_values, bindings_of
from ..program.scopes import Assigned, Iterated, Path
from ..program.syntax import Module, last_identifier
from ..tensors.returned_values import returned_by
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element
from .half_products import operands_of_one_type
from .linear_origins import SAME_VALUES

_TURNED = frozenset({"t", "transpose", "permute", "swapaxes", "contiguous", "conj", "adjoint"})
_TURNING = frozenset({"T", "mT", "H", "mH"})
_DIFFERENCES = frozenset({"sub", "sub_", "subtract", "subtract_"})
_ARITHMETIC = _DIFFERENCES | {"add", "mul", "multiply", "div", "divide", "true_divide"}
_SAME_VALUES = frozenset({"clone", "detach", "float"})
_LOSSES = frozenset(
    f"torch.nn.{name}"
    for name in (
        *("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"),
        *(f"functional.{name}" for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")),
    )
)
"""Losses that begin with the difference of what they are given."""
_MOST_STEPS = 12


def is_covariance_difference(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` subtracts one product of a tensor with itself from another, or from the identity."""
    sides = _subtracted(resolver, node, module)
    products = SelfProducts(resolver, module)
    return (
        len(sides) == 2
        and all(products.in_terms(s) or _is_identity(resolver, s, module) for s in sides)
        and any(products.in_terms(side) for side in sides)
    )


def _is_identity(
    resolver: Resolver, node: ast.expr, module: Module, steps: int = _MOST_STEPS
) -> bool:
    """Whether ``node`` may be an identity matrix, of whatever shape: ``torch.eye(n)[None].to(x.device)``."""
    if steps == 0:
        return False
    if "torch.eye" in resolver.maker_names(node, module):
        return True
    match node:
        case ast.Subscript(value=inner):
            parts = [inner]
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in SAME_VALUES:
            parts = [inner]
        case ast.Name():
            parts = assigned_values(module, node)
        case _:
            parts = []
    return any(_is_identity(resolver, part, module, steps - 1) for part in parts)


def _subtracted(resolver: Resolver, node: ast.AST, module: Module) -> list[ast.expr]:
    """Both sides of ``x - y``, ``x -= y``, ``torch.sub(x, y)``, ``torch.add(x, -1 * y)`` or ``mse_loss(x, y)``; nothing of what is none."""
    match node:
        case ast.BinOp(left, ast.Sub(), right) | ast.AugAssign(left, ast.Sub(), right):
            return [left, right]
        case ast.Call(func=function, args=[left, right]) if _LOSSES & (
            resolver.names(function, module) | resolver.maker_names(function, module)
        ):
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
    """Follows terms through variables, lists and functions of the script, to products of a tensor with itself (``x @ x.t()``)."""

    def __init__(self, resolver: Resolver, module: Module) -> None:
        self._resolver, self._module = resolver, module

    def in_terms(self, node: ast.expr, steps: int = _MOST_STEPS) -> bool:
        """Whether a term or a factor of ``node``, or of an element of the list that it is, is such a product."""
        if steps == 0:
            return False
        if self._is_of_itself(node):
            return True
        match node:
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
                parts = [left, right]
            case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner) | ast.ListComp(elt=inner):
                parts = [inner]
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                pass
            case ast.Name():
                parts = list(self._values(node))
            case ast.Call(func=function) if last_identifier(function) in _ARITHMETIC:
                parts = _operands(self._resolver, node, self._module)
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _SAME_VALUES:
                parts = [inner]
            case ast.Call() | ast.Attribute():
                return self._elsewhere(node, steps - 1)
            case _:
                parts = []
        return any(self.in_terms(part, steps - 1) for part in parts)

    def _values(self, name: ast.Name) -> Iterator[ast.expr]:
        """What the variable ``name`` may have been assigned, or lists that a loop takes it from."""
        for binding in bindings_of(self._module, name):
            match binding.source:
                case Assigned(value, path) if not path:
                    yield value
                case Iterated(iterable, path):
                    yield _gone_over(iterable, path)
                case _:
                    pass

    def _elsewhere(self, node: ast.Call | ast.Attribute, steps: int) -> bool:
        """Whether such a product is in what a function of the script returns, or in what is kept as an attribute."""
        if isinstance(node, ast.Call):
            found = [
                (value, callee.module)
                for callee in self._resolver.callees(node, self._module)
                for value in returned_by(callee)
            ]
        else:
            cls = self._module.enclosing_class(node)
            kept = kept_as(self._resolver, cls, self._module, node.attr)
            found = [(unpacked_element(value, path), module) for value, path, module in kept]
        return any(
            SelfProducts(self._resolver, module).in_terms(value, steps)
            for value, module in found
            if value is not None
        )

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


def _gone_over(iterable: ast.expr, path: Path) -> ast.expr:
    """The list of whose elements a loop over ``iterable`` gets those that ``path`` leads to: through ``zip`` and ``enumerate``."""
    match iterable, path:
        case ast.Call(func=ast.Name("zip"), args=lists), (int(position), *rest) if position < len(
            lists
        ) and not any(isinstance(one, ast.Starred) for one in lists):
            return _gone_over(lists[position], tuple(rest))
        case ast.Call(func=ast.Name("enumerate"), args=[one, *_]), (1, *rest):
            return _gone_over(one, tuple(rest))
        case _:
            return iterable
