"""Attention that is written out for where PyTorch has no fused one: ``if hasattr(F, "scaled_dot_product_attention"): .. else: ..``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..program.syntax import Module, last_identifier
from ..program.trees import child_nodes, walk

_FUSED = "scaled_dot_product_attention"


def fused_in_place_of(product: ast.expr, module: Module) -> ast.expr | None:
    """The call of the fused operation that is made in place of ``product`` under another condition, None where there is none."""
    inner: ast.AST = product
    for around in module.ancestors(product):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return None
        if isinstance(around, ast.If | ast.IfExp) and inner is not around.test:
            found = _fused_call(part for part in _parts(around) if part is not inner)
            if found is not None:
                return found
        if isinstance(around, ast.stmt):
            found = _returned_above(around, module)
            if found is not None:
                return found
        inner = around
    return None


def _parts(choice: ast.If | ast.IfExp) -> list[ast.AST]:
    return [child for child in child_nodes(choice) if child is not choice.test]


def _returned_above(statement: ast.stmt, module: Module) -> ast.expr | None:
    """The fused call of an ``if`` above ``statement`` that returns its result."""
    block = module.block(statement)
    above = block[: block.index(statement)]
    returning = [s for s in above if isinstance(s, ast.If) and isinstance(s.body[-1], ast.Return)]
    return _fused_call(part for choice in returning for part in choice.body)


def _fused_call(parts: Iterable[ast.AST]) -> ast.expr | None:
    for part in parts:
        for node in walk(part):
            if isinstance(node, ast.Call) and last_identifier(node.func) == _FUSED:
                return node.func
    return None
