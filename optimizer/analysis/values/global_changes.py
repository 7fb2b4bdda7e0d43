"""What gives the global variables of a file their values: assignments, and changes of the objects they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.signatures import argument_for
from ..loading.iterations import top_level_starts
from ..program.scopes import Parameter
from ..program.syntax import FunctionNode, Module
from .changed_objects import changed_objects
from .resolver import Resolver


@dataclass(frozen=True, eq=False)
class Setter:
    """Code at the top level of a file that binds or changes a global; ``attribute``: only this one of the object's."""

    node: ast.AST
    attribute: str | None = None

    def matters_to(self, read: ast.Name, module: Module) -> bool:
        """Whether ``read`` may see what is set: not where it reads another attribute."""
        around = module.parents[read]
        if self.attribute is None or not isinstance(around, ast.Attribute):
            return True
        return around.attr == self.attribute


def global_setters(resolver: Resolver, module: Module) -> dict[str, list[Setter]]:
    """For every global of ``module``, the code at its top level that binds or changes it, itself or by a call."""
    found: dict[str, list[Setter]] = {}
    bindings = module.scopes.by_node[module.tree].bindings
    reached = [(name, b.node, None) for name, bound in bindings.items() for b in bound]
    for name, node, attribute in [*reached, *_changes_in_place(resolver, module)]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.setdefault(name, []).append(Setter(node))
            continue
        for start, owner in top_level_starts(resolver, node, module):
            if owner is module:
                found.setdefault(name, []).append(Setter(start, attribute))
    return found


def _changes_in_place(
    resolver: Resolver, module: Module
) -> Iterator[tuple[str, ast.AST, str | None]]:
    """The globals whose objects are changed, with the node that does it, or hands them to a function that does.

    Last, the attribute, where nothing else of the object is set.
    """
    seen: set[tuple[FunctionNode, str]] = set()
    pending = [
        (target, node, owner)
        for owner in resolver.project.modules
        for node in owner.nodes
        for target in changed_objects(resolver, node, owner)
    ]
    while pending:
        target, node, owner = pending.pop()
        root = _root(target)
        found = owner.scope(root).lookup(root.id) if root is not None else None
        if root is None or found is None:
            continue
        if isinstance(found[0].node, ast.Module):
            if owner is module:
                yield root.id, node, _attribute_set(node, target)
            continue
        for binding in found[1]:
            function = getattr(binding.source, "function", None)
            if (
                isinstance(binding.source, Parameter)
                and isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
                and (function, root.id) not in seen
            ):
                seen.add((function, root.id))
                pending += _given(resolver, function, root.id)


def _given(
    resolver: Resolver, function: FunctionNode, parameter: str
) -> Iterator[tuple[ast.expr, ast.AST, Module]]:
    """What calls hand to ``parameter``: an argument, or the object whose method is called."""
    for site in resolver.call_sites(function):
        first = function.args.args[:1]
        if site.bound and first and first[0].arg == parameter:
            if function.name != "__init__" and isinstance(site.call.func, ast.Attribute):
                yield site.call.func.value, site.call, site.module
            continue
        passed = argument_for(function, parameter, site.call, site.bound)
        if passed is not None and passed.given is not None:
            yield passed.given, site.call, site.module


def _root(target: ast.expr) -> ast.Name | None:
    """The variable that ``target`` is, or is inside of: ``options`` of ``options.setdefault("a", []).x[0]``."""
    while True:
        match target:
            case ast.Name():
                return target
            case ast.Attribute(value=inner) | ast.Subscript(value=inner):
                target = inner
            case ast.Call(func=ast.Attribute(value=inner)):
                target = inner
            case _:
                return None


def _attribute_set(node: ast.AST, target: ast.expr) -> str | None:
    if isinstance(target, ast.Name) and isinstance(node, ast.Assign) and len(node.targets) == 1:
        assigned = node.targets[0]
        if isinstance(assigned, ast.Attribute) and assigned.value is target:
            return assigned.attr
    return None
