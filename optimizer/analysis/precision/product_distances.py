"""Squared distances made of a matrix product: ``x.pow(2).sum(1) - 2 * x @ y + y.pow(2).sum(0)``.

Of close vectors the terms cancel, and what is left is the rounding of the product: computed in half precision or in TF32 it makes a
nearest code, neighbour or hardest sample another one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from enum import Flag, auto

from ..program.reaching import bindings_of
from ..program.scopes import Assigned
from ..program.syntax import Module, last_identifier
from ..values.constants import constant
from ..values.resolver import Resolver
from .covariances import SelfProducts
from .half_products import operands_of_one_type

_SUMS = frozenset({"sum", "nansum"})
_NORMS = frozenset({"norm", "vector_norm"})
_SUMMED_PRODUCTS = frozenset({"addmm", "addbmm", "baddbmm"})
_SUMMED_IN_PLACE = frozenset({"addmm_", "addbmm_", "baddbmm_"})
_SAME_VALUES = frozenset(
    "view reshape expand expand_as unsqueeze squeeze transpose permute t contiguous repeat flatten detach "
    "movedim swapaxes broadcast_to to type_as clone".split()
)
"""Methods and functions that leave the numbers of a tensor as they are."""
_DIAGONALS = frozenset({"diag", "diagonal"})
_SUMMING_TEXT = ("sum", "norm", "diag")
_MULTIPLYING_TEXT = ("@", "mm", "matmul", "einsum", "linear")


class _Terms(Flag):
    """What the terms of a sum are made of."""

    NEITHER = 0
    PRODUCT = auto()
    SQUARES = auto()


_BOTH = _Terms.PRODUCT | _Terms.SQUARES


def is_product_distance(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` is a sum, whole or in place, of squares and a matrix product."""
    return (
        _is_whole_sum(node, module)
        and _may_sum_and_multiply(module)
        and _Sums(resolver, module).terms(node) == _BOTH
    )


def _may_sum_and_multiply(module: Module) -> bool:
    text = module.source.text
    return any(part in text for part in _SUMMING_TEXT) and any(
        part in text for part in _MULTIPLYING_TEXT
    )


def _is_whole_sum(node: ast.AST, module: Module) -> bool:
    """Whether ``node`` adds things up, and is not just a term of a longer sum."""
    if isinstance(node, ast.Call):
        return last_identifier(node.func) in _SUMMED_PRODUCTS | _SUMMED_IN_PLACE
    if not _adds(node):
        return False
    return isinstance(node, ast.AugAssign) or not _adds(module.parents[node])


def _adds(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub)


def _picks_diagonal(subscript: ast.Subscript) -> bool:
    """Whether ``products[:, rows, rows]`` picks the diagonal, or a part of it, by numbers of its own."""
    match subscript.slice:
        case ast.Tuple([*_, (ast.Name() | ast.Attribute()) as rows, columns]):
            return ast.dump(rows) == ast.dump(columns)
        case _:
            return False


class _Sums:
    """Follows the terms of one sum through the variables of its function."""

    def __init__(self, resolver: Resolver, module: Module) -> None:
        self._resolver, self._module = resolver, module
        self._products = SelfProducts(resolver, module)
        self._seen: set[ast.AST] = set()

    def terms(self, node: ast.AST) -> _Terms:
        """What the terms of the sum ``node``, or the term that it is, are made of."""
        if node in self._seen:
            return _Terms.NEITHER
        self._seen.add(node)
        if isinstance(node, ast.expr) and operands_of_one_type(self._resolver, node, self._module):
            added = node.args if isinstance(node, ast.Call) and self._adds_up(node) else []
            return _Terms.PRODUCT | self._all(added)
        match node:
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
                return self.terms(left) | self.terms(right)
            case ast.BinOp(ast.Call(func=norm), ast.Pow(), power) if constant(power) == 2:
                return _Terms.SQUARES if last_identifier(norm) in _NORMS else _Terms.NEITHER
            case ast.AugAssign(target=target, value=value):
                return self.terms(target) | self.terms(value)
            case ast.Subscript(value=inner) if _picks_diagonal(node):
                return _Terms.SQUARES if self._products.in_terms(inner) else self.terms(inner)
            case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner):
                return self.terms(inner)
            case ast.Attribute(value=inner, attr="T" | "mT"):
                return self.terms(inner)
            case ast.Name():
                return self._all([*self._assigned(node), *self._added(node)])
            case ast.Call():
                return self._call(node)
            case _:
                return _Terms.NEITHER

    def _all(self, nodes: Iterable[ast.AST]) -> _Terms:
        found = _Terms.NEITHER
        for node in nodes:
            found |= self.terms(node)
        return found

    @staticmethod
    def _adds_up(call: ast.Call) -> bool:
        return last_identifier(call.func) in _SUMMED_PRODUCTS

    def _call(self, call: ast.Call) -> _Terms:
        name, operand = last_identifier(call.func), self._operand(call)
        if operand is None:
            return _Terms.NEITHER
        if name in _SAME_VALUES:
            return self.terms(operand)
        if name in _SUMMED_IN_PLACE:
            return _Terms.PRODUCT | self.terms(operand)
        if name in _SUMS and self._is_square(operand):
            return _Terms.SQUARES
        if name in _DIAGONALS and self._products.in_terms(operand):
            return _Terms.SQUARES  # `torch.diag(x @ x.t())`
        is_norm = isinstance(operand, ast.Call) and last_identifier(operand.func) in _NORMS
        return _Terms.SQUARES if is_norm and self._is_square(call) else _Terms.NEITHER

    def _operand(self, call: ast.Call) -> ast.expr | None:
        """What ``x.f(..)`` and ``torch.f(x, ..)`` are about."""
        if not isinstance(call.func, ast.Attribute):
            return None
        if self._resolver.names(call.func, self._module):
            return call.args[0] if call.args else None
        return call.func.value

    def _is_square(self, node: ast.expr) -> bool:
        match node:
            case ast.BinOp(_, ast.Pow(), power):
                return constant(power) == 2
            case ast.BinOp(left, ast.Mult(), right):
                return ast.dump(left) == ast.dump(right)
            case ast.Name():
                values = self._assigned(node)
                return len(values) == 1 and self._is_square(values[0])
            case ast.Call():
                name = last_identifier(node.func)
                if name in _SAME_VALUES:
                    operand = self._operand(node)
                    return operand is not None and self._is_square(operand)
                power = node.args[-1] if name == "pow" and node.args else None
                return name == "square" or (power is not None and constant(power) == 2)
            case _:
                return False

    def _assigned(self, name: ast.Name) -> list[ast.expr]:
        sources = (binding.source for binding in bindings_of(self._module, name))
        return [s.value for s in sources if isinstance(s, Assigned) and not s.path]

    def _added(self, name: ast.Name) -> Iterator[ast.expr]:
        """What is added in place to the variable ``name``, in its own function."""
        function = self._module.function(name)
        for use in self._module.names_of(name.id):
            user = self._module.parents[use]
            if (
                isinstance(user, ast.AugAssign)
                and user.target is use
                and _adds(user)
                and self._module.function(use) is function
            ):
                yield user.value
