"""Whether an object certainly has an attribute where new code is to name it."""

from __future__ import annotations

import ast

from ..calls.signatures import first_parameter
from ..program.classes import family, kept_as
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.resolver import Resolver
from .bound_names import binds, may_not_run


def is_read_always(module: Module, function: FunctionNode, name: str) -> bool:
    """Whether the method ``function`` reads ``self.name`` whatever it is told, and so fails without it."""
    this = first_parameter(function)
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == this
        and module.function(node) is function
        and not may_not_run(module, node, function)
        for node in walk(function)
    )


def is_kept_always(resolver: Resolver, cls: ast.ClassDef | None, module: Module, name: str) -> bool:
    """Whether some method sets ``self.name`` in each of its branches, and no method of the object chooses whether to call it.

    ``if kind == "vae": self.build_vae()`` in ``__init__`` does. What no method sets is not asked about.
    """
    setting: dict[FunctionNode, set[ast.stmt]] = {}
    for value, _, where in kept_as(resolver, cls, module, name):
        function = where.function(value)
        if function is not None:
            setting.setdefault(function, set()).add(where.statement(value))
    relatives = {member.node for member in family(resolver, cls, module)}
    pending = list(setting)
    while pending:
        function = pending.pop()
        if not binds(function.body, setting[function]):
            continue
        sites = resolver.call_sites(function)
        own = [s for s in sites if s.module.enclosing_class(s.call) in relatives]
        if function.name == "__init__" or not own or len(own) < len(sites):
            return True
        for site in own:
            caller, statement = site.module.function(site.call), site.module.statement(site.call)
            if caller is not None and statement not in setting.setdefault(caller, set()):
                setting[caller].add(statement)
                pending.append(caller)
    return not setting
