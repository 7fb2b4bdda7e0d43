"""How a loop over batches counts them, or can."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...rewriting.edits import FileEdit, ReplaceExpression
from ..calls.reach import lexical_nodes
from ..editing.free_names import free_name
from ..obstacles import Obstacle
from ..program.syntax import Module
from ..program.trees import is_name, position, walk
from ..values.resolver import Resolver

_NAMES = ("step", "batch_index", "micro_batch", "step_index")


@dataclass(frozen=True, eq=False)
class BatchIndex:
    """The variable ``name`` that counts the batches from ``start`` on, and the edits it takes to have it."""

    name: str
    start: int
    edits: tuple[FileEdit, ...]


def is_enumerate(resolver: Resolver, iterable: ast.expr, module: Module) -> bool:
    """Whether ``iterable`` is a call of the built-in ``enumerate``."""
    if not (isinstance(iterable, ast.Call) and iterable.args):
        return False
    return resolver.names(iterable.func, module) == frozenset({"builtins.enumerate"})


def batch_index(resolver: Resolver, loop: ast.For, module: Module) -> BatchIndex | Obstacle:
    """The index of the batch in ``loop``: its own, else a new one."""
    new = free_name(module, _NAMES)
    if not is_enumerate(resolver, loop.iter, module):
        return _no_name(loop, module) if new is None else _added(loop, module, new)
    assert isinstance(loop.iter, ast.Call)
    starts = [*loop.iter.args[1:], *(keyword.value for keyword in loop.iter.keywords)]
    match starts:
        case []:
            start = 0
        case [ast.Constant(value=int() as start)] if start in (0, 1):
            start = int(start)
        case _:
            return Obstacle(module, loop.iter, "the loop does not count its batches from 0 or 1")
    match loop.target:
        case ast.Tuple(elts=[ast.Name(id=name) as target, batch]):
            is_unread = not name.strip("_")
        case _:
            return _no_name(loop, module)
    if not is_unread:
        uses = [*lexical_nodes(loop.body), *walk(batch)]
        if any(is_name(use, name) and not isinstance(use.ctx, ast.Load) for use in uses):
            return Obstacle(module, loop.target, f"`{name}` is changed in the loop")
        return BatchIndex(name, start, ())
    if new is None or any(is_name(use, name) for use in lexical_nodes(loop.body)):
        return _no_name(loop, module)
    edit = ReplaceExpression(module.span(target), new)
    return BatchIndex(new, start, (FileEdit(module.path, edit),))


def _no_name(loop: ast.For, module: Module) -> Obstacle:
    return Obstacle(module, loop.target, "the index of the batch has no name, and none is free")


def _added(loop: ast.For, module: Module, name: str) -> BatchIndex:
    target = module.code(loop.target)
    if isinstance(loop.target, ast.Tuple) and not _has_parentheses(loop.target):
        target = f"({target})"
    edits = (
        ReplaceExpression(module.span(loop.target), f"{name}, {target}"),
        ReplaceExpression(module.span(loop.iter), f"enumerate({module.code(loop.iter)})"),
    )
    return BatchIndex(name, 0, tuple(FileEdit(module.path, edit) for edit in edits))


def _has_parentheses(target: ast.Tuple) -> bool:
    return position(target) < position(target.elts[0])
