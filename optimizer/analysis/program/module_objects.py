"""Variables that stand for modules, also of compiled code: imported, or built when the script starts.

``chamfer.backward(xyz1, xyz2, ...)`` of one is a function, and no backward pass of a tensor:
https://docs.pytorch.org/docs/stable/cpp_extension.html
"""

from __future__ import annotations

import ast

from .scopes import Assigned, Binding, Imported
from .syntax import Module

_BUILDERS = frozenset({"load", "load_inline"})
_BUILDING = "cpp_extension"


def is_module_object(node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is a variable that stands for a module, whichever of its bindings has run."""
    bindings = _bindings(node, module)
    return bool(bindings) and all(_binds_module(binding, module) for binding in bindings)


def _bindings(node: ast.expr, module: Module) -> list[Binding]:
    found = module.scope(node).lookup(node.id) if isinstance(node, ast.Name) else None
    return list(found[1]) if found is not None else []


def _binds_module(binding: Binding, module: Module) -> bool:
    match binding.source:
        case Imported(attribute=None):
            return True
        case Assigned(ast.Call(func=builder), ()):
            return _builds_extension(builder, module)
        case _:
            return False


def _builds_extension(builder: ast.expr, module: Module) -> bool:
    """Whether ``builder`` is ``torch.utils.cpp_extension.load``, by whichever name."""
    if isinstance(builder, ast.Attribute):
        owner = ast.unparse(builder.value)
        return builder.attr in _BUILDERS and owner.rpartition(".")[2] == _BUILDING
    return any(
        isinstance(binding.source, Imported)
        and binding.source.module.rpartition(".")[2] == _BUILDING
        and binding.source.attribute in _BUILDERS
        for binding in _bindings(builder, module)
    )
