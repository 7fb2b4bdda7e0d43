"""Which operations are matrix products: those that autocast takes to half precision, and those that TF32 rounds."""

from __future__ import annotations

import ast

from ..networks.called_layers import called_layers, library_layer
from ..program.syntax import Module, last_identifier
from ..values.resolver import Resolver
from ..values.values import Element

_METHODS = frozenset("matmul mm bmm mv addmm addbmm baddbmm addmv".split())
_FUNCTIONS = _METHODS | {"einsum", "linear", "chain_matmul", "multi_dot"}
_CONVOLUTIONS = frozenset(f"conv{n}d" for n in (1, 2, 3))
LINEAR_LAYERS = frozenset({"Linear", "LazyLinear"})
PRODUCT_LAYERS = LINEAR_LAYERS | {f"{kind}{n}d" for kind in ("Conv", "LazyConv") for n in (1, 2, 3)}


def is_half_product(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether autocast casts the operands of ``node``, a convolution or layer, too."""
    functions = _FUNCTIONS | _CONVOLUTIONS
    return _is_product(resolver, node, module, functions) or _is_layer(
        resolver, node, module, PRODUCT_LAYERS
    )


def is_summed_product(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether TF32 rounds the operands of ``node`` when asked to. Convolutions are in TF32 as it is."""
    return _is_product(resolver, node, module, _FUNCTIONS) and not _sums_nothing(node)


def is_linear_layer(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` runs a linear layer of PyTorch's."""
    return _is_layer(resolver, node, module, LINEAR_LAYERS)


def _is_product(
    resolver: Resolver, node: ast.AST, module: Module, functions: frozenset[str]
) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if not isinstance(node, ast.Call) or last_identifier(node.func) not in functions:
        return False
    names = resolver.names(node.func, module)
    if names:
        return all(name.startswith("torch.") for name in names)
    return last_identifier(node.func) in _METHODS and not resolver.callees(node, module)


def _is_layer(resolver: Resolver, node: ast.AST, module: Module, layers: frozenset[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    # What is in a list whose layers are not found may be one of them.
    return any(
        isinstance(value, Element) or library_layer(resolver, value) in layers
        for value in called_layers(resolver, node.func, module)
    )


def _sums_nothing(node: ast.AST) -> bool:
    """Whether ``node`` is an ``einsum`` that multiplies without a sum: ``einsum("i,j->ij", x, y)``."""
    match node:
        case ast.Call(args=[ast.Constant(value=str(equation)), *_]):
            given, arrow, kept = equation.replace(" ", "").partition("->")
            return bool(arrow) and set(given) - {",", "."} <= set(kept)
        case _:
            return False
