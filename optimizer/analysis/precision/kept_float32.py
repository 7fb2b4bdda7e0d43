"""Matrix products that a script takes out of autocast for their digits: TF32 would round what it keeps in float32.

So ``with torch.autocast("cuda", enabled=False): d = q.float() @ k.float().t()``, a function under ``custom_fwd(cast_inputs=torch.float32)``, and
in a script that uses autocast ``scores = torch.matmul(q.float(), k.float())``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import reached_nodes
from ..calls.signatures import call_argument
from ..obstacles import Obstacle
from ..program.reaching import bindings_of
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element
from .half_trace import runs_network
from .linear_origins import SAME_VALUES, tensor_operands
from .matrix_products import is_linear_layer, is_summed_product

_REGION = "autocast is off here, so that a matrix product keeps its digits, which TF32 would round"
_CAST = "operands of a matrix product are taken back to float32, so that it keeps its digits, which TF32 would round"
_FLOAT32 = frozenset({"torch.float32", "torch.float"})
_AUTOCAST = ".autocast"


def regions_in_float32(resolver: Resolver, module: Module) -> Iterator[Obstacle]:
    """Where ``module`` computes matrix products in a region or function in which autocast is off."""
    if "autocast" not in module.source.text and "custom_fwd" not in module.source.text:
        return
    for statement in module.nodes_of(ast.With, ast.FunctionDef):
        contexts = (
            [item.context_expr for item in statement.items]
            if isinstance(statement, ast.With)
            else statement.decorator_list
        )
        off = next((c for c in contexts if _keeps_float32(resolver, c, module)), None)
        if off is not None and _computes_products(resolver, statement, module):
            yield Obstacle(module, off, _REGION)


def products_in_float32(resolver: Resolver, module: Module) -> Iterator[Obstacle]:
    """The matrix products in ``module`` whose operands the script takes back to float32."""
    if not any(cast in module.source.text for cast in ("float()", "float32", "torch.float")):
        return
    for node in module.nodes_of(ast.BinOp, ast.Call):
        if not is_summed_product(resolver, node, module):
            continue
        operands = (
            [node.left, node.right]
            if isinstance(node, ast.BinOp)
            else tensor_operands(resolver, node, module)
        )
        if any(_is_cast(resolver, operand, module) for operand in operands):
            yield Obstacle(module, node, _CAST)


def uses_autocast(resolver: Resolver) -> bool:
    """Whether the script runs something under autocast, if an option of its own says so."""
    return any(
        _is_autocast(resolver, call, module) and not is_autocast_off(resolver, call, module)
        for module in resolver.project.modules
        if "autocast" in module.source.text
        for call in module.calls
    )


def _is_autocast(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    return any(
        n.startswith("torch.") and n.endswith(_AUTOCAST) for n in resolver.names(call.func, module)
    )


def is_autocast_off(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` makes a region in which autocast is off for certain."""
    enabled = call_argument(call, "enabled")
    if enabled is None and "torch.cuda.amp.autocast" in resolver.names(call.func, module):
        enabled = call_argument(call, "enabled", 0)
    if enabled is not None and resolver.is_always(enabled, module, False):
        return True
    dtype = call_argument(call, "dtype", 1)
    return dtype is not None and _is_float32(resolver, dtype, module)


def _keeps_float32(resolver: Resolver, context: ast.expr, module: Module) -> bool:
    if not isinstance(context, ast.Call):
        return False
    if _is_autocast(resolver, context, module):
        return is_autocast_off(resolver, context, module)
    names = resolver.names(context.func, module)
    cast = call_argument(context, "cast_inputs")
    return (
        any(name.startswith("torch.") and name.endswith(".custom_fwd") for name in names)
        and cast is not None
        and _is_float32(resolver, cast, module)
    )


def _is_float32(resolver: Resolver, dtype: ast.expr, module: Module) -> bool:
    names = resolver.names(dtype, module)
    return bool(names) and names <= _FLOAT32


def _computes_products(
    resolver: Resolver, statement: ast.With | ast.FunctionDef, module: Module
) -> bool:
    """Whether ``statement`` computes matrix products of its own, and not just runs a whole network."""
    nodes = list(reached_nodes(resolver, statement.body, module))
    if any(
        isinstance(r.node, ast.Call) and runs_network(resolver, r.node, r.module) for r in nodes
    ):
        return False
    return any(
        is_summed_product(resolver, r.node, r.module) or is_linear_layer(resolver, r.node, r.module)
        for r in nodes
    )


def _is_cast(resolver: Resolver, node: ast.expr, module: Module, steps: int = 6) -> bool:
    """Whether ``node`` is what was converted to float32, in another shape, by another name or times a number."""
    if steps == 0:
        return False
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr=method)):
            if method in {"to", "type"}:
                given = call_argument(node, "dtype", 0)
                return given is not None and _is_float32(resolver, given, module)
            if method == "float" and not resolver.names(node.func, module):
                return not node.args
            return method in SAME_VALUES and _is_cast(resolver, inner, module, steps - 1)
        case ast.Attribute(value=inner, attr="T" | "mT") | ast.Subscript(value=inner):
            return _is_cast(resolver, inner, module, steps - 1)
        case ast.BinOp(left, ast.Mult() | ast.Div(), right):
            return any(_is_cast(resolver, side, module, steps - 1) for side in (left, right))
        case ast.Name():
            sources = [binding.source for binding in bindings_of(module, node)]
            return any(
                isinstance(source, Assigned)
                and _is_cast(
                    resolver, unpacked_element(source.value, source.path), module, steps - 1
                )
                for source in sources
            )
        case _:
            return False
