"""Whether every layer of a network takes part in each of its forward passes."""

from __future__ import annotations

import ast

from .classes import first_party_bases
from .facts import Fact, Model
from .models import is_module_value
from .networks import Networks
from .obstacles import Obstacle
from .resolver import Resolver
from .syntax import Module
from .values import Class


def layer_left_out(resolver: Resolver, model: Model) -> Fact | None:
    """A layer of ``model`` that is made and then never named again: it gets no gradient."""
    if model.cls is None:
        return None
    for cls in (model.cls, *first_party_bases(resolver, model.cls)):
        found = _left_out(resolver, cls, cls.module)
        if found is not None:
            return found
    return None


def _left_out(resolver: Resolver, cls: Class, module: Module) -> Fact | None:
    read = {
        node.attr
        for node in ast.walk(cls.node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    others = {
        node.attr
        for other in resolver.project.modules
        for node in other.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    by_name = any(
        (isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"getattr", "vars"})
        or (
            isinstance(node, ast.Attribute)
            and node.attr in {"children", "modules", "_modules", "__dict__"}
        )
        for node in ast.walk(cls.node)
    )
    if by_name:
        return None
    for (owner, name), assigned in module.self_assignments.items():
        if owner is not cls.node or name in read or name in others:
            continue
        for value, path in assigned:
            if path or not isinstance(value, ast.Call):
                continue
            made = resolver.values(value, module)
            if made and all(is_module_value(resolver, v) for v in made):
                return Obstacle(module, value, f"`self.{name}` is never used")
    return None


_CHANCE = ("random.", "numpy.random.", "torch.rand", "torch.bernoulli", "torch.distributions.")
_BY_VALUE = frozenset({"torch.equal", "torch.allclose"})


def conditional_layer(resolver: Resolver) -> Fact | None:
    """Where a network's forward pass draws lots or looks at values, so that layers may be left out of it."""
    for forward in Networks(resolver).forwards:
        for node in ast.walk(forward.node):
            if not isinstance(node, ast.If | ast.IfExp):
                continue
            for call in ast.walk(node.test):
                if isinstance(call, ast.Call) and any(
                    name.startswith(_CHANCE) or name in _BY_VALUE
                    for name in resolver.names(call.func, forward.module)
                ):
                    return Obstacle(forward.module, node, "the forward pass depends on chance")
    return None
