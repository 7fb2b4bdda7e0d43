"""Operations that take tensors of one type only: ``half @ full`` raises, where ``half + full`` is float32.

Under autocast they cast what they are given themselves; outside of it nothing does:
https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
"""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..program.syntax import Module, last_identifier
from ..values.resolver import Resolver

_OPERANDS = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "inner"), 2),
    **dict.fromkeys(("addmm", "addbmm", "baddbmm", "addmv"), 3),
    "tensordot": 2,
    "grid_sample": 2,
    **dict.fromkeys((f"conv{n}d" for n in (1, 2, 3)), 2),
    **dict.fromkeys((f"conv_transpose{n}d" for n in (1, 2, 3)), 2),
    "linear": 2,
    "bilinear": 3,
}
"""How many of the first operands of a function have to be of one type."""
_METHODS = frozenset({"matmul", "mm", "bmm", "mv", "dot", "addmm", "addbmm", "baddbmm", "addmv"})


def operands_of_one_type(resolver: Resolver, node: ast.AST, module: Module) -> list[ast.expr]:
    """The tensors that ``node`` can only take in one type; none where it is no such operation."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right] if isinstance(node.op, ast.MatMult) else []
    if not isinstance(node, ast.Call):
        return []
    names = resolver.names(node.func, module)
    packages = {name.partition(".")[0] for name in names}
    if packages <= {"builtins"} and isinstance(node.func, ast.Attribute):
        return [node.func.value, *node.args] if node.func.attr in _METHODS else []
    if packages != {"torch"}:
        return []
    functions = {name.rpartition(".")[2] for name in names}
    if functions == {"einsum"}:
        return node.args[1:]
    counts = {_OPERANDS.get(function, 0) for function in functions}
    if len(counts) > 1:
        return []
    found = [call_argument(node, "weight" if n == 1 else "input", n) for n in range(counts.pop())]
    return [operand for operand in found if operand is not None]


def may_multiply(node: ast.AST) -> bool:
    """Whether ``node`` may be an operation that autocast runs in half precision, by its name."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    last = last_identifier(node.func) if isinstance(node, ast.Call) else ""
    return last in _OPERANDS or last in {"einsum", "multi_dot", "chain_matmul", "prelu"}


def may_run_outside(
    resolver: Resolver, node: ast.AST, module: Module, covered: frozenset[ast.AST], depth: int = 4
) -> bool:
    """Whether ``node`` is also run by code that is not ``covered``."""
    if node not in covered:
        return True
    function = module.function(node)
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    around = {node, *module.ancestors(node)}
    if not any(statement in around and statement in covered for statement in function.body):
        return False  # what covers it is in the function itself
    sites = resolver.call_sites(function)
    if not any(site.call in covered for site in sites):
        return False  # nor do its callers cover it
    return depth > 0 and any(
        may_run_outside(resolver, site.call, site.module, covered, depth - 1) for site in sites
    )
