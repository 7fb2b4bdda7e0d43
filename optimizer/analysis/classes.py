"""First-party classes: their bases, methods and the attributes their methods assign."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .containers import select
from .scopes import unpacked_names
from .trees import walk
from .values import Class, Function, Value, union

if TYPE_CHECKING:
    from .resolver import Resolver


def first_party_bases(resolver: Resolver, cls: Class) -> list[Class]:
    """The first-party classes ``cls`` derives from, nearest first."""
    found: list[Class] = []
    pending = [cls]
    while pending:
        current = pending.pop(0)
        for base in current.node.bases:
            for value in resolver.values(base, current.module):
                if isinstance(value, Class) and value not in found and value != cls:
                    found.append(value)
                    pending.append(value)
    return found


def class_attribute(resolver: Resolver, cls: Class, name: str) -> frozenset[Value]:
    """What the attribute ``name`` of an instance of ``cls`` may be: a method, a class attribute, ``self.name = ...``."""
    for owner in (cls, *first_party_bases(resolver, cls)):
        found = _own_attribute(resolver, owner, name)
        if found:
            return found
    return frozenset()


def defines_methods_only(resolver: Resolver, cls: Class, name: str) -> bool:
    """Whether the attribute ``name`` can be nothing but a method, and which one is certain within a trace, too."""
    owners = (cls, *first_party_bases(resolver, cls))
    return all(
        all(resolver.is_known(base) for base in owner.node.bases)
        and (owner.node, name) not in owner.module.self_assignments
        and not any(_assigned_to_name(statement, name) for statement in owner.node.body)
        for owner in owners
    )


def _own_attribute(resolver: Resolver, cls: Class, name: str) -> frozenset[Value]:
    found: set[Value] = set()
    for statement in cls.node.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name == name:
                if _is_property(statement):
                    return _property_values(resolver, statement, cls)
                return frozenset([Function(statement, cls.module, bound=not _is_static(statement))])
        else:
            for value in _assigned_to_name(statement, name):
                found |= resolver.values(value, cls.module)
    for value, path in cls.module.self_assignments.get((cls.node, name), ()):
        found |= select(resolver, resolver.values(value, cls.module), path)
    return frozenset(found)


def _assigned_to_name(statement: ast.stmt, name: str) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return [
            statement.value
            for target in statement.targets
            if any(n.id == name and not path for n, path in unpacked_names(target))
        ]
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target = statement.target
        return [statement.value] if isinstance(target, ast.Name) and target.id == name else []
    return []


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        isinstance(d, ast.Name) and d.id in {"property", "cached_property"}
        for d in function.decorator_list
    )


def _is_static(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)


def _property_values(
    resolver: Resolver, function: ast.FunctionDef | ast.AsyncFunctionDef, cls: Class
) -> frozenset[Value]:
    values = [
        resolver.values(node.value, cls.module)
        for node in walk(function)
        if isinstance(node, ast.Return) and node.value is not None
    ]
    return union(values)
