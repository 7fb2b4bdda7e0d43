"""Which bindings of a name a use can see: reaching definitions, approximated on the syntax tree."""

from __future__ import annotations

import ast
from typing import cast

from .scopes import Binding, Defined, Imported, Parameter, Scope
from .syntax import Module
from .trees import walk

_Position = tuple[int, int]
_RUN_IN_PLACE = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Scopes whose code runs where it stands, unlike that of a function."""


def reaching_bindings(
    module: Module, owner: Scope, bindings: list[Binding], scope: Scope | None, use: ast.AST
) -> list[Binding]:
    """The bindings of ``owner`` that may give a name its value where ``use`` stands in ``scope``.

    Inside the scope that binds the name, a binding in a block around the use hides the earlier ones, and a later one
    counts only when a loop leads back to the use. From a function inside, or for None (after
    the scope ran), the last unconditional binding hides the earlier ones.
    """
    if len(bindings) == 1 or owner.is_class:
        return bindings
    while scope is not None and scope is not owner and isinstance(scope.node, _RUN_IN_PLACE):
        scope = scope.parent
    if scope is not owner:
        return _after_last_unconditional(module, owner, bindings)
    before = [
        b for b in bindings if _effect(module, b) <= _position(use) and not _inside(module, use, b)
    ]
    around = _enclosing_blocks(module, use)
    reaching: list[Binding] = []
    for binding in before:
        if _block(module, binding) in around:
            reaching = []
        reaching.append(binding)
    # What the loop binds anew before the use, such as its own target, is not what its last pass left behind.
    fresh = [b for b in before if _block(module, b) in around]
    loops = [
        loop
        for loop in module.loops(use)
        if not any(loop in module.ancestors(b.node) for b in fresh)
    ]
    reaching += [
        b
        for b in bindings
        if b not in before and any(loop in module.ancestors(b.node) for loop in loops)
    ]
    return reaching or bindings


def _after_last_unconditional(
    module: Module, owner: Scope, bindings: list[Binding]
) -> list[Binding]:
    top_blocks = {id(getattr(owner.node, "body", None))}
    if isinstance(owner.node, ast.Module) and module.main_guard is not None:
        top_blocks.add(id(module.main_guard.body))
    reaching: list[Binding] = []
    for binding in bindings:
        if _block(module, binding) in top_blocks:
            reaching = []
        reaching.append(binding)
    return reaching


def _inside(module: Module, use: ast.AST, binding: Binding) -> bool:
    """Whether ``use`` is read by the very statement that makes ``binding`` (``x = f(x)``)."""
    if isinstance(binding.source, Parameter | Imported | Defined):
        return False
    statement = module.statement(binding.node)
    if isinstance(statement, ast.For | ast.AsyncFor):
        return use is statement.iter or statement.iter in module.ancestors(use)
    if isinstance(statement, ast.With | ast.AsyncWith | ast.If | ast.While):
        return False
    return statement in module.ancestors(use)


def _effect(module: Module, binding: Binding) -> _Position:
    return _position(binding.node)


def _position(node: ast.AST) -> _Position:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _block(module: Module, binding: Binding) -> int:
    """The identity of the statement list in which ``binding`` takes effect."""
    if isinstance(binding.source, Parameter):
        return id(binding.source.function.body)
    statement = module.statement(binding.node)
    if isinstance(statement, ast.For | ast.AsyncFor) and binding.node in walk(statement.target):
        return id(statement.body)
    if isinstance(statement, ast.With | ast.AsyncWith):
        return id(statement.body)
    return id(module.block(statement))


def _enclosing_blocks(module: Module, use: ast.AST) -> set[int]:
    blocks: set[int] = set()
    child = use
    for ancestor in [use, *module.ancestors(use)]:
        for _, value in ast.iter_fields(ancestor):
            if isinstance(value, list) and child in cast(list[ast.AST], value):
                blocks.add(id(cast(object, value)))
        if ancestor is not use and isinstance(
            ancestor, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            break
        child = ancestor
    return blocks
