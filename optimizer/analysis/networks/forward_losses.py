"""Losses that a network computes in its own forward pass, as scripts do that spread it with ``DataParallel``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import lexical_nodes
from ..program.scopes import Assigned, Path
from ..program.syntax import Module
from ..training.batch_targets import AnyTargets
from ..training.mean_losses import not_a_mean
from ..values.resolver import Resolver
from ..values.unpacking import written_part
from ..values.values import Class, Made
from .networks import Networks


def returns_mean(resolver: Resolver, loss: ast.expr, module: Module) -> bool:
    """Whether ``loss`` is what a network's forward returns, maybe its mean over replicas, and a mean over samples there."""
    returned = list(_returned(resolver, loss, module, (), set()))
    return any(
        not_a_mean(resolver, value, owner, AnyTargets()) is None for value, owner in returned
    )


def _returned(
    resolver: Resolver, loss: ast.expr, module: Module, path: Path, seen: set[ast.expr]
) -> Iterator[tuple[ast.expr, Module]]:
    """The expressions that a forward pass behind ``loss`` returns, or the part of them that ``path`` leads to."""
    if loss in seen:
        return
    seen.add(loss)
    match loss:
        case ast.Call(func=ast.Attribute(value=inner, attr="mean"), args=[], keywords=[]):
            yield from _returned(resolver, inner, module, path, seen)
        case ast.Name():
            found = module.scope(loss).lookup(loss.id)
            for binding in found[1] if found else ():
                if isinstance(binding.source, Assigned):
                    value, part = binding.source.value, binding.source.path
                    yield from _returned(resolver, value, module, (*path, *part), seen)
        case ast.Call():
            networks = Networks(resolver)
            for value in networks.unwrapped(loss.func, module):
                if isinstance(value, Made) and isinstance(value.maker, Class):
                    for forward in networks.forwards_of(value.maker):
                        if isinstance(forward.node, ast.FunctionDef):
                            yield from _returns(forward.node, forward.module, path)
        case _:
            pass


def _returns(
    forward: ast.FunctionDef, module: Module, path: Path
) -> Iterator[tuple[ast.expr, Module]]:
    for node in lexical_nodes(forward.body):
        value = node.value if isinstance(node, ast.Return) else None
        value = written_part(value, path)
        if value is not None:
            yield value, module
