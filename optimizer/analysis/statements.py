"""Where statements stand relative to each other."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .syntax import Module


def common_block(
    module: Module, statements: Iterable[ast.stmt]
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The innermost block that holds all of ``statements``, and its own statements that hold them.

    The block is empty when no block of one function holds them all.
    """
    chains = [_with_enclosing(module, statement) for statement in statements]
    for candidate in chains[0]:
        block = module.block(candidate)
        held = [next((s for s in chain if s in block), None) for chain in chains]
        if all(held):
            return block, [s for s in held if s is not None]
    return [], []


def _with_enclosing(module: Module, statement: ast.stmt) -> list[ast.stmt]:
    """``statement`` and the statements around it, up to its function."""
    chain = [statement]
    for ancestor in module.ancestors(statement):
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            break
        if isinstance(ancestor, ast.stmt):
            chain.append(ancestor)
    return chain
