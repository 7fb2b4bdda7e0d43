"""Where statements stand relative to each other."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import cast

from ..facts import Fact
from .syntax import Module
from .trees import walk


def exclude_each_other(module: Module, one: ast.stmt, other: ast.stmt) -> bool:
    """Whether the two are in different branches of an ``if``."""
    child: ast.AST = one
    for ancestor in module.ancestors(one):
        if isinstance(ancestor, ast.If) and other in set(walk(ancestor)):
            mine = ancestor.body if child in ancestor.body else ancestor.orelse
            return not any(other in set(walk(statement)) for statement in mine)
        child = ancestor
    return False


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


def is_elif(module: Module, statement: ast.stmt) -> bool:
    """Whether ``statement`` is the ``elif`` of another test."""
    parent = module.parents.get(statement)
    return (
        isinstance(parent, ast.If)
        and parent.orelse == [statement]
        and parent.col_offset == statement.col_offset
    )


def ends_block(statement: ast.stmt) -> bool:
    """Whether nothing behind ``statement`` runs: ``raise``, ``return``, ``sys.exit()``."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
            return name in {"exit", "quit", "_exit"}
        case _:
            return isinstance(statement, ast.Raise | ast.Return | ast.Continue | ast.Break)


def outermost_test(module: Module, statement: ast.stmt) -> ast.stmt:
    """``statement``, or the ``if`` that it is an ``elif`` of: nothing else can stand right above or below an ``elif``."""
    while is_elif(module, statement):
        above = module.parents[statement]
        assert isinstance(above, ast.If)
        statement = above
    return statement


def are_alternatives(one: ast.AST, other: ast.AST, module: Module) -> bool:
    """Whether ``one`` and ``other`` are in the two branches of a test, so that only one of them runs."""
    around = {ancestor: child for ancestor, child in _branches(module, one)}
    for ancestor, child in _branches(module, other):
        if ancestor in around:
            is_test = isinstance(ancestor, ast.If | ast.IfExp)
            return is_test and {around[ancestor], child} == {"body", "orelse"}
    return False


def only_one_runs(facts: Iterable[Fact]) -> bool:
    """Whether tests choose one of ``facts``, if they are several."""
    return all(
        one.module is other.module and are_alternatives(one.node, other.node, one.module)
        for one, other in combinations(facts, 2)
    )


def _branches(module: Module, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The nodes around ``node`` up to its function, innermost first, each with the field that ``node`` is in."""
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        yield (
            ancestor,
            next(name for name, value in ast.iter_fields(ancestor) if _holds(value, node)),
        )
        node = ancestor


def _holds(value: object, node: ast.AST) -> bool:
    return value is node or (isinstance(value, list) and node in cast("list[object]", value))


def _with_enclosing(module: Module, statement: ast.stmt) -> list[ast.stmt]:
    """``statement`` and the statements around it, up to its function."""
    chain = [statement]
    for ancestor in module.ancestors(statement):
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            break
        if isinstance(ancestor, ast.stmt):
            chain.append(ancestor)
    return chain
