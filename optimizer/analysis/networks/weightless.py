"""Modules of the project that compute without weights: losses, masks, smoothed labels."""

from __future__ import annotations

import ast

from ..calls.reach import lexical_nodes
from ..program.classes import first_party_bases, kept_as, kept_names
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Class, Made
from .models import is_module_value, models_in
from .network_layers import has_parameters

_REGISTERS = frozenset({"register_parameter", "register_module", "add_module", "setattr"})


def keeps_no_weights(resolver: Resolver, made: Made) -> bool:
    """Whether the module that ``made`` is certainly has no weights and no layers, nor runs others that have."""
    cls = made.maker
    if not isinstance(cls, Class) or resolver.base_names(cls) != frozenset({"torch.nn.Module"}):
        return False
    models = models_in(resolver, frozenset({made}))
    if not models or any(has_parameters(resolver, model) for model in models):
        return False
    names = kept_names(resolver, cls.node, cls.module)
    if any(_may_hold_layers(resolver, cls, name) for name in names):
        return False
    owners = (cls, *first_party_bases(resolver, cls))
    fields = [s for c in owners for s in c.node.body if not isinstance(s, ast.FunctionDef)]
    if any(isinstance(node, ast.Call) for node in lexical_nodes(fields)):
        return False
    given = {arg.arg for c in owners for arg in walk(c.node) if isinstance(arg, ast.arg)}
    return not any(
        _names_module(resolver, node, owner.module)
        or (
            isinstance(node, ast.Call) and (_registers(node) or _may_run_layers(node, names, given))
        )
        for owner in owners
        for node in walk(owner.node)
    )


def _may_hold_layers(resolver: Resolver, cls: Class, name: str) -> bool:
    """Whether what is kept as ``name`` is made by a call, or a module."""
    return any(
        any(isinstance(node, ast.Call) for node in walk(value))
        or any(is_module_value(resolver, v) for v in resolver.values(value, module))
        for value, _, module in kept_as(resolver, cls.node, cls.module, name)
    )


def _names_module(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` is the name of a module that is made elsewhere."""
    return (
        isinstance(node, ast.Name)
        and node.id != "self"
        and isinstance(node.ctx, ast.Load)
        and any(is_module_value(resolver, value) for value in resolver.values(node, module))
    )


def _registers(call: ast.Call) -> bool:
    return getattr(call.func, "attr", getattr(call.func, "id", "")) in _REGISTERS


def _may_run_layers(call: ast.Call, kept: list[str], given: set[str]) -> bool:
    """Whether a network may run that was given: ``self.network(x)``, ``self.networks[0](x)``, ``network(x)``."""
    holder = call.func
    if isinstance(holder, ast.Name):
        return holder.id in given
    while isinstance(holder, ast.Attribute | ast.Subscript):
        if isinstance(holder, ast.Attribute) and isinstance(holder.value, ast.Name):
            return holder.value.id == "self" and holder.attr in kept
        holder = holder.value
    return False
