"""The two matrix products of attention: of queries with keys, and of weights with values."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..program.reaching import bindings_of
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..values.constants import constant
from ..values.resolver import Resolver
from ..values.unpacking import written_part

_LAST_TWO = ({-2.0, -1.0}, {2.0, 3.0})
_DEEPEST = 8
"""So many assignments and views are looked through."""
_REARRANGES = frozenset(
    "transpose permute swapaxes view reshape contiguous unsqueeze flatten expand repeat".split()
)
_TYPES = {
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "half": "half",
    "float16": "half",
    "bfloat16": "bfloat16",
}


@dataclass(frozen=True)
class Operand:
    """Queries, keys or values; ``swapped`` where their heads come behind the positions: (batch, positions, heads, size)."""

    node: ast.expr
    swapped: bool = False

    def code(self, module: Module) -> str:
        """As the fused operation takes them: (batch, heads, positions, size)."""
        code = module.code(self.node)
        if not self.swapped:
            return code
        is_atom = isinstance(self.node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        return f"{code}.transpose(1, 2)" if is_atom else f"({code}).transpose(1, 2)"


@dataclass(frozen=True)
class WeightedSum:
    """``product`` sums up ``value`` by the ``weights``; ``swapped`` where the heads come behind the positions in its result."""

    weights: ast.expr
    value: Operand
    product: ast.expr
    swapped: bool = False


def scores_product(
    resolver: Resolver, node: ast.expr, module: Module
) -> tuple[Operand, Operand] | None:
    """The queries and the keys whose product ``node`` is; None where it is none, or not seen to be that of keys laid down."""
    factors = _factors(resolver, node, module)
    if factors is not None:
        key = _laid_down(resolver, factors[1], module)
        return None if key is None else (Operand(factors[0]), Operand(key))
    summed = _einsum(resolver, node, module)
    if summed is None:
        return None
    (query, key), (query_dims, key_dims, result) = summed
    if len(result) < 4 or len(query_dims) != len(result) or len(key_dims) != len(result):
        return None
    heads, (row, column) = result[:-2], result[-2:]
    size = query_dims[-1]
    if size in result or size != key_dims[-1]:
        return None
    query_order, key_order = heads + row + size, heads + column + size
    if not (_is_order(query_dims, query_order) and _is_order(key_dims, key_order)):
        return None
    return Operand(query, query_dims != query_order), Operand(key, key_dims != key_order)


def weighted_sum(resolver: Resolver, weights: ast.expr, module: Module) -> WeightedSum | None:
    """The product with the values in which ``weights`` is the first factor, if that is where it stands."""
    product = module.parents[weights]
    if isinstance(product, ast.Attribute | ast.List | ast.Tuple):
        product = module.parents[product]
    if not isinstance(product, ast.expr):
        return None
    factors = _factors(resolver, product, module)
    if factors is not None:
        is_first = factors[0] is weights and factors[1] is not weights
        return WeightedSum(weights, Operand(factors[1]), product) if is_first else None
    summed = _einsum(resolver, product, module)
    if summed is None or summed[0][0] is not weights:
        return None
    (_, value), (weight_dims, value_dims, result) = summed
    if not len(weight_dims) == len(value_dims) == len(result) >= 4:
        return None
    heads, (row, column) = weight_dims[:-2], weight_dims[-2:]
    size = value_dims[-1]
    value_order, result_order = heads + column + size, heads + row + size
    if size in weight_dims or not (
        _is_order(value_dims, value_order) and _is_order(result, result_order)
    ):
        return None
    operand = Operand(value, value_dims != value_order)
    return WeightedSum(weights, operand, product, result != result_order)


def is_batched_by_hand(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is ``torch.bmm(..)``, which takes tensors of three dimensions only."""
    if not isinstance(node, ast.Call):
        return False
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "bmm"
    return is_method or resolver.names(node.func, module) == frozenset({"torch.bmm"})


def cast_of(node: ast.expr, module: Module) -> str | None:
    """The type that ``node`` is cast to, whatever it had before: ``float`` for ``q.float()``; None where it keeps its own."""
    for _ in range(_DEEPEST):
        match node:
            case ast.Name():
                value = _assigned(node, module)
                if value is None:
                    return None
                node = value
            case ast.Call(ast.Attribute(_, "float" | "double" | "half" | "bfloat16" as name), []):
                return name
            case ast.Call(ast.Attribute(_, "to" | "type"), [ast.Attribute(_, name)]) if (
                name in _TYPES
            ):
                return _TYPES[name]
            case ast.Call(ast.Attribute(inner, name)) if name in _REARRANGES:
                node = inner
            case _:
                return None
    return None


def _assigned(name: ast.Name, module: Module) -> ast.expr | None:
    """What the variable was assigned, also as one of several: ``q, k = q.float(), k.float()``."""
    bindings = bindings_of(module, name)
    source = bindings[0].source if len(bindings) == 1 else None
    match source:
        case Assigned(value, ()):
            return value
        case Assigned(ast.Tuple() as display, path):
            return written_part(display, path)
        case _:
            return None


def _factors(
    resolver: Resolver, node: ast.expr, module: Module
) -> tuple[ast.expr, ast.expr] | None:
    match node:
        case ast.BinOp(left, ast.MatMult(), right):
            return left, right
        case ast.Call(function, [left, right], []):
            names = resolver.names(function, module)
            return (left, right) if names and names <= {"torch.matmul", "torch.bmm"} else None
        case ast.Call(ast.Attribute(left, "matmul" | "bmm"), [right], []):
            return left, right
        case _:
            return None


def _laid_down(resolver: Resolver, node: ast.expr, module: Module) -> ast.expr | None:
    """``k`` of ``k.transpose(-2, -1)`` and its like."""
    match node:
        case ast.Attribute(key, "mT"):
            return key
        case ast.Call(ast.Attribute(key, "transpose" | "swapaxes"), [first, second], []):
            return key if {constant(first), constant(second)} in _LAST_TWO else None
        case ast.Call(ast.Attribute(key, "permute"), [*dims], []):
            return key if [constant(dim) for dim in dims] == [0.0, 1.0, 3.0, 2.0] else None
        case ast.Call(function, [key, first, second], []):
            if resolver.names(function, module) == frozenset({"torch.transpose"}):
                return key if {constant(first), constant(second)} in _LAST_TWO else None
            return None
        case _:
            return None


def _einsum(
    resolver: Resolver, node: ast.expr, module: Module
) -> tuple[tuple[ast.expr, ast.expr], tuple[str, str, str]] | None:
    """The operands of ``torch.einsum`` of two tensors, and the letters of both and of the result."""
    match node:
        case ast.Call(function, [ast.Constant(str() as pattern), first, second], []) | ast.Call(
            function,
            [
                ast.Constant(str() as pattern),
                ast.List([first, second]) | ast.Tuple([first, second]),
            ],
            [],
        ):
            if resolver.names(function, module) != frozenset({"torch.einsum"}):
                return None
        case _:
            return None
    given, _, result = pattern.replace(" ", "").partition("->")
    letters = given.split(",")
    if len(letters) != 2 or not all(part.isalpha() for part in (*letters, result)):
        return None
    if any(len(set(part)) != len(part) for part in (*letters, result)):
        return None
    return (first, second), (letters[0], letters[1], result)


def _is_order(dims: str, order: str) -> bool:
    """Whether ``dims`` is ``order``, or that with heads and positions swapped."""
    swapped = order[0] + order[2] + order[1] + order[3] if len(order) == 4 else order
    return dims in (order, swapped)
