"""Tensors that a script makes on the host and leaves there: ``torch.rand(1)``."""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..program.reaching import bindings_of
from ..program.scopes import Assigned
from ..program.syntax import Module, last_identifier
from ..values.resolver import Resolver
from .construction import ConstructionFinder
from .placement import default_device_call

_SIZED = frozenset("rand randn randint randperm zeros ones empty full arange linspace eye".split())
"""Functions that are given sizes and numbers, of which none tells a device."""
_MOVES = frozenset({"to", "cuda", "type", "type_as"})


def is_made_on_host(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is made by a function without ``device=``, and moved nowhere: ``torch.ones(3)``."""
    return _factory(resolver, node, module) is not None


def holds_host_numbers(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is certainly a tensor of numbers that were drawn or counted on the host, ``torch.rand(1)``, by whatever name."""
    if not isinstance(node, ast.Name):
        return _draws(resolver, node, module)
    sources = [binding.source for binding in bindings_of(module, node)]
    return bool(sources) and all(
        isinstance(source, Assigned) and not source.path and _draws(resolver, source.value, module)
        for source in sources
    )


def _draws(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    factory = _factory(resolver, node, module)
    if factory is None or last_identifier(factory.func) not in _SIZED:
        return False
    return not any(default_device_call(resolver, other) for other in resolver.project.modules)


def _factory(resolver: Resolver, node: ast.expr, module: Module) -> ast.Call | None:
    """The call without ``device=`` that makes ``node``, where nothing moves it."""
    chain = ConstructionFinder(resolver).chain(node, module)
    if chain is None or call_argument(chain[0], "device") is not None:
        return None
    factory, steps = chain
    return None if any(last_identifier(step.func) in _MOVES for step in steps) else factory
