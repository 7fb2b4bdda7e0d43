"""What code outside a network's class does to its attributes: ``model.attn.scale = 2.0``, ``model.attn.mask[0] = 1``.

Judged by name: whatever may be a network may be the one that is meant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..networks.models import is_module_value
from ..program.attribute_reads import literal_name
from ..program.classes import family
from ..program.syntax import Module
from ..program.trees import is_name, walk
from .resolver import Resolver
from .values import Attribute, Element, Unknown


def outside_uses(resolver: Resolver, name: str) -> Iterator[tuple[ast.Attribute, Module]]:
    """Where ``x.name`` is written, read or called and ``x`` is not ``self``."""
    for module in resolver.project.modules:
        for node in module.attributes_of(name):
            if not is_name(node.value, "self") and _may_be_network(resolver, node.value, module):
                yield node, module


def outside_values(resolver: Resolver, name: str) -> Iterator[tuple[ast.expr | None, Module]]:
    """What ``x.name`` is assigned where ``x`` is not ``self``; None is something that is not seen."""
    for node, module in outside_uses(resolver, name):
        if not isinstance(node.ctx, ast.Load):
            match module.parents[node]:
                case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                    yield value, module
                case _:
                    yield None, module
    for module in resolver.project.modules:
        for call in module.calls_named("setattr"):
            if len(call.args) != 3 or not _may_be_network(resolver, call.args[0], module):
                continue
            told = literal_name(call)
            if told == name or (
                told is None
                and _is_layer(resolver, call.args[2], module)
                and not _is_of_another_class(resolver, call, name, module)
            ):
                yield call.args[2], module


def _is_of_another_class(resolver: Resolver, call: ast.Call, name: str, module: Module) -> bool:
    """Whether ``setattr(self, ...)`` is about an object whose class, with those around it, does not speak of ``self.name``."""
    if not is_name(call.args[0], "self"):
        return False
    classes = family(resolver, module.enclosing_class(call), module)
    mentioned = (n for cls in classes for n in walk(cls.node) if isinstance(n, ast.Attribute))
    return bool(classes) and all(attribute.attr != name for attribute in mentioned)


def _may_be_network(resolver: Resolver, owner: ast.expr, module: Module) -> bool:
    values = resolver.values(owner, module)
    return not values or any(
        isinstance(v, Unknown | Attribute | Element) or is_module_value(resolver, v) for v in values
    )


def _is_layer(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    return any(is_module_value(resolver, value) for value in resolver.values(node, module))
