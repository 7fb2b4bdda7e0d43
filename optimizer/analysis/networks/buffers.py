"""Which attributes of a layer are its buffers."""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..program.classes import family
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Class
from .models import is_module_class


def is_buffer(resolver: Resolver, node: ast.Attribute, module: Module) -> bool:
    """Whether ``node`` is a buffer of its layer: ``self.register_buffer("mean", ...)``."""
    cls = module.enclosing_class(node)
    if cls is None or not is_module_class(resolver, Class(cls, module)):
        return False
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "register_buffer"
        and member.module.enclosing_class(call) is member.node
        and _names(call, node.attr)
        for member in family(resolver, cls, module)
        for call in member.module.calls
    )


def _names(call: ast.Call, attribute: str) -> bool:
    name = call_argument(call, "name", 0)
    return isinstance(name, ast.Constant) and name.value == attribute
