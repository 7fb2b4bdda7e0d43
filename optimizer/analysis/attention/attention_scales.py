"""By what attention that is written out scales its scores."""

from __future__ import annotations

import ast

from ..program.classes import kept_as
from ..program.reaching import bindings_of, only_value, same_variable
from ..program.scopes import Assigned, Path
from ..program.syntax import Module
from ..values.constants import constant
from ..values.host_numbers import is_number
from ..values.outside_writes import outside_values
from ..values.resolver import Resolver
from ..values.values import Attribute, Element, Literal, Made
from .attention_chains import Chain, Scale

_ROOTS = frozenset({"math.sqrt", "numpy.sqrt"})


class Scales:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def code(self, scale: Scale, module: Module) -> str:
        """The scale to pass."""
        code = module.code(scale.factor)
        if not scale.divides:
            return code
        match scale.factor:
            case ast.BinOp(base, ast.Pow(), power) if constant(power) == 0.5:
                return f"{module.code(base)} ** -0.5"
            case ast.BinOp() | ast.BoolOp() | ast.IfExp() | ast.UnaryOp():
                return f"1 / ({code})"
            case _:
                return f"1 / {code}"

    def is_default(self, scale: Scale, chain: Chain, module: Module) -> bool:
        """Whether the scores are divided by the root of the queries' last size."""
        factor, divides = scale.factor, scale.divides
        match factor:
            case ast.BinOp(one, ast.Div(), root) if constant(one) == 1 and not divides:
                factor, divides = root, True
            case _:
                pass
        match factor:
            case ast.BinOp(base, ast.Pow(), power) if constant(power) == (0.5 if divides else -0.5):
                size = base
            case ast.Call(function, [argument], []) if divides:
                if not self._resolver.names(function, module) <= _ROOTS:
                    return False
                size = argument
            case _:
                return False
        tensor = last_size_of(size, module)
        return tensor is not None and any(
            isinstance(operand.node, ast.Name) and same_variable(tensor, operand.node, module)
            for operand in (chain.query, chain.key)
        )

    def is_number(self, node: ast.expr, module: Module, depth: int = 4) -> bool:
        """Whether ``node`` is a number; sizes that a constructor is given are taken to be some."""
        if depth == 0:
            return False
        match node:
            case ast.Attribute(attr=name) if kept := self._kept(node, module):
                return self._is_kept_number(name, kept, depth)
            case ast.Call(function):
                names = self._resolver.names(function, module)
                if names and names <= _ROOTS | {"builtins.float", "builtins.int"}:
                    return True
            case ast.BinOp(base, ast.Pow(), power) if constant(power) in {0.5, -0.5}:
                return self.is_number(base, module, depth - 1) or self._is_size(base, module)
            case ast.BinOp(left, _, right):
                return all(self.is_number(n, module, depth - 1) for n in (left, right))
            case ast.BoolOp(ast.Or(), values):
                # `scale or size ** -0.5`: what a caller gives that is not seen is a number, too.
                return self.is_number(values[-1], module, depth - 1) and not any(
                    isinstance(value, Made | Attribute | Element)
                    for given in values[:-1]
                    for value in self._resolver.values(given, module)
                )
            case ast.Name():
                sources = [b.source for b in bindings_of(module, node)]
                if sources and all(
                    isinstance(s, Assigned)
                    and not s.path
                    and self.is_number(s.value, module, depth - 1)
                    for s in sources
                ):
                    return True
            case _:
                pass
        return is_number(self._resolver, node, module) or last_size_of(node, module) is not None

    def _kept(self, node: ast.Attribute, module: Module) -> list[tuple[ast.expr, Path, Module]]:
        return kept_as(self._resolver, module.enclosing_class(node), module, node.attr)

    def _is_kept_number(
        self, name: str, kept: list[tuple[ast.expr, Path, Module]], depth: int
    ) -> bool:
        """Whether the attribute ``name``, which methods assign ``kept``, is only ever given numbers, there and outside."""
        return all(
            not path and self.is_number(value, owner, depth - 1) for value, path, owner in kept
        ) and all(
            value is not None and self.is_number(value, owner, depth - 1)
            for value, owner in outside_values(self._resolver, name)
        )

    def _is_size(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is worked out in a constructor, of what that is given: the sizes of layers."""
        if isinstance(node, ast.Attribute):
            kept = self._kept(node, module)
            if kept:
                return all(not path and self._is_size(value, owner) for value, path, owner in kept)
        function = module.function(node)
        if function is None or function.name != "__init__":
            return False
        values = self._resolver.values(node, module)
        return not any(
            isinstance(v, Made) or (isinstance(v, Literal) and isinstance(v.value, str))
            for v in values
        )


def last_size_of(node: ast.expr, module: Module) -> ast.Name | None:
    """``k`` of ``k.size(-1)`` and ``k.shape[-1]``, written out or as a variable."""
    if isinstance(node, ast.Name):
        value = only_value(module, node)
        if value is None:
            return None
        node = value
    match node:
        case ast.Call(ast.Attribute(ast.Name() as tensor, "size"), [dim], []):
            return tensor if constant(dim) == -1 else None
        case ast.Subscript(ast.Attribute(ast.Name() as tensor, "shape"), dim):
            return tensor if constant(dim) == -1 else None
        case _:
            return None


def is_size(node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is the last size of a tensor, or a root of it."""
    if last_size_of(node, module) is not None:
        return True
    match node:
        case ast.Call(_, [inner], []):
            return last_size_of(inner, module) is not None
        case _:
            return False
