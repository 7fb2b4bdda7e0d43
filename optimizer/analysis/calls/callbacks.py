"""Functions that are used as values, and so may be called from anywhere."""

from __future__ import annotations

import ast

from ..program.syntax import FunctionNode, Module
from ..values.resolver import Resolver
from ..values.values import Attribute, Element, External, Function, Made, Unknown, Value

_KEEP_NOTHING = ("torch.optim.", "torch.amp.", "torch.utils.data.")
"""Libraries whose objects have no attributes but their own: ``optimizer.step`` is no method of what it was given."""
_GRAD_MODES = frozenset({"torch.no_grad", "torch.inference_mode", "torch.enable_grad"})


def is_handed_around(resolver: Resolver, function: FunctionNode) -> bool:
    """Whether ``function`` is named anywhere without being called there."""
    for module in resolver.project.modules:
        for node in (*module.names_of(function.name), *module.attributes_of(function.name)):
            if not isinstance(node.ctx, ast.Load) or resolver.leftovers.hold(node, module):
                continue
            parent = module.parents[node]
            if isinstance(parent, ast.Call) and parent.func is node:
                continue
            if any(
                isinstance(value, Function) and value.node is function
                for value in resolver.values(node, module)
            ):
                return True
    return False


def has_known_callers(resolver: Resolver, function: FunctionNode, module: Module) -> bool:
    """Whether nothing but the calls of ``function`` that are seen gets what it gives."""
    if isinstance(function, ast.AsyncFunctionDef) or function.name.startswith("__"):
        return False
    plain = all(
        (isinstance(d, ast.Name) and d.id in {"staticmethod", "classmethod"})
        or resolver.names(d.func if isinstance(d, ast.Call) else d, module) & _GRAD_MODES
        for d in function.decorator_list
    )
    sites = {site.call for site in resolver.call_sites(function)}
    return (
        plain
        and not is_handed_around(resolver, function)
        and not any(
            call not in sites
            and not resolver.leftovers.hold(call, other)
            and _may_call(resolver, call, other, function)
            for other in resolver.project.modules
            for call in other.calls_named(function.name)
        )
    )


def _may_call(resolver: Resolver, call: ast.Call, module: Module, function: FunctionNode) -> bool:
    """Whether ``call`` names ``function`` on an object that is not known."""
    if not isinstance(call.func, ast.Attribute) or not resolver.may_reach(call, module, function):
        return False
    return any(_may_be_anything(value) for value in resolver.values(call.func, module))


def _may_be_anything(value: Value) -> bool:
    """Whether ``value`` may be a method of the script's own: not where an object of torch has one of that name."""
    match value:
        case Attribute(Made(maker=External(name))):
            return not name.startswith(_KEEP_NOTHING)
        case _:
            return isinstance(value, Unknown | Attribute | Element)


def is_property(function: FunctionNode) -> bool:
    """Whether reading an attribute calls ``function``."""
    return any(
        isinstance(d, ast.Name) and d.id in {"property", "cached_property"}
        for d in function.decorator_list
    )
