"""Whether every layer of a network takes part in each of its forward passes."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..facts import Fact
from ..obstacles import Obstacle
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element
from ..values.values import Class
from .models import is_module_value


def layer_left_out(resolver: Resolver, classes: Iterable[Class]) -> Fact | None:
    """A layer of ``classes`` that is made and then never named again: it gets no gradient."""
    named = {
        node.attr
        for module in resolver.project.modules
        for node in module.nodes_of(ast.Attribute)
        if isinstance(node.ctx, ast.Load)
    }
    for cls in classes:
        found = _left_out(resolver, cls, cls.module, named)
        if found is not None:
            return found
    return None


def _left_out(resolver: Resolver, cls: Class, module: Module, named: set[str]) -> Fact | None:
    by_name = any(
        (isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"getattr", "vars"})
        or (
            isinstance(node, ast.Attribute)
            and node.attr in {"children", "modules", "_modules", "__dict__"}
        )
        for node in walk(cls.node)
    )
    if by_name:
        return None
    for (owner, name), assigned in module.self_assignments.items():
        if owner is not cls.node or name in named:
            continue
        for value, path in assigned:
            layer = unpacked_element(value, path)
            if not isinstance(layer, ast.Call) or (path and layer is value):
                continue
            made = resolver.values(layer, module)
            if made and all(is_module_value(resolver, v) for v in made):
                return Obstacle(module, layer, f"`self.{name}` is never used")
    return None
