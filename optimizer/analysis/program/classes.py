"""First-party classes: their bases, methods and the attributes their methods assign."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..values.containers import select
from ..values.unpacking import unpacked_names
from ..values.values import Class, Function, Value, union
from .parameters import positional_parameters
from .scopes import Path
from .syntax import FunctionNode, Module, is_decorated, is_docstring
from .trees import walk

if TYPE_CHECKING:
    from ..values.resolver import Resolver

_ABSTRACT = ("abstractmethod", "abstractclassmethod", "abstractstaticmethod")


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


def self_attribute(resolver: Resolver, cls: Class, name: str) -> frozenset[Value]:
    """What ``self.name`` may be in a method of ``cls``, which may be an instance of a class that derives from it.

    A method that only says that subclasses have to have it is left out where they do.
    """
    found = union(class_attribute(resolver, one, name) for one in (cls, *resolver.subclasses(cls)))
    return frozenset(v for v in found if not _is_abstract(v)) or found


def super_attribute(resolver: Resolver, cls: Class, name: str) -> frozenset[Value]:
    """What ``super().name`` may be in a method of ``cls``, as far as a first-party class has it."""
    for base in first_party_bases(resolver, cls):
        found = _own_attribute(resolver, base, name)
        if found:
            return found
    return frozenset()


def kept_as(
    resolver: Resolver, node: ast.ClassDef | None, module: Module, name: str
) -> list[tuple[ast.expr, Path, Module]]:
    """What the methods assign to ``self.name`` of an object that runs code of the class ``node``: the value, the part of it, and its module.

    Methods of its bases and of the classes that derive from it do so for the same object.
    """
    return [
        (value, path, member.module)
        for member in family(resolver, node, module)
        for value, path in member.module.self_assignments.get((member.node, name), ())
    ]


def kept_names(resolver: Resolver, node: ast.ClassDef, module: Module) -> list[str]:
    """The names of what the methods of the class ``node`` and of its bases assign to attributes of ``self``."""
    cls = Class(node, module)
    found = {
        name: None
        for member in (cls, *first_party_bases(resolver, cls))
        for owner, name in member.module.self_assignments
        if owner is member.node
    }
    return list(found)


def family(resolver: Resolver, node: ast.ClassDef | None, module: Module) -> tuple[Class, ...]:
    """The class ``node``, its bases and the classes that derive from it: nothing where it is None."""
    if node is None:
        return ()
    cls = Class(node, module)
    return (cls, *first_party_bases(resolver, cls), *resolver.subclasses(cls))


def unbound(value: Value) -> Value:
    """``value`` as an attribute of the class, not of an instance: a method whose first parameter is yet to be given."""
    if isinstance(value, Function) and isinstance(value.node, ast.FunctionDef):
        is_class_method = is_decorated(value.node, "classmethod")
        return replace(value, bound=is_class_method)
    return value


def find_subclasses(resolver: Resolver) -> dict[ast.ClassDef, list[Class]]:
    """The first-party classes that derive from each of the project's, directly or not."""
    found: dict[ast.ClassDef, list[Class]] = {}
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.ClassDef):
            for base in first_party_bases(resolver, Class(node, module)):
                found.setdefault(base.node, []).append(Class(node, module))
    return found


def find_decorated(resolver: Resolver) -> dict[ast.AST, list[Value]]:
    """The classes and functions that each function has for its decorator, and gives back as they are: ``@register("small")``."""
    found: dict[ast.AST, list[Value]] = {}
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef):
            is_class = isinstance(node, ast.ClassDef)
            decorated = Class(node, module) if is_class else Function(node, module)
            for decorator in node.decorator_list:
                for value in resolver.values(decorator, module):
                    if isinstance(value, Function) and _gives_back(value):
                        found.setdefault(value.node, []).append(decorated)
    return found


def _gives_back(decorator: Function) -> bool:
    """Whether ``decorator`` returns what it decorates, and nothing else."""
    function = decorator.node
    if isinstance(function, ast.Lambda):
        return False
    name = decorated_parameter(function, decorator.bound)
    returned = [node.value for node in walk(function) if isinstance(node, ast.Return)]
    return bool(returned) and all(isinstance(v, ast.Name) and v.id == name for v in returned)


def decorated_parameter(function: FunctionNode, bound: bool) -> str | None:
    """The parameter in which ``function`` gets what it decorates: the first, of a method of an object that behind ``self``."""
    parameters = positional_parameters(function)[1 if bound else 0 :]
    return parameters[0].arg if parameters else None


def defines_methods_only(resolver: Resolver, classes: Iterable[Class], name: str) -> bool:
    """Whether the attribute ``name`` of ``classes`` can be nothing but a method, and is certain within a trace, too."""
    owners = [owner for cls in classes for owner in (cls, *first_party_bases(resolver, cls))]
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
                return frozenset(
                    [
                        Function(
                            statement,
                            cls.module,
                            bound=not is_decorated(statement, "staticmethod"),
                        )
                    ]
                )
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


def _is_abstract(value: Value) -> bool:
    """Whether ``value`` is a method that does nothing but say that it is missing."""
    if not isinstance(value, Function) or isinstance(value.node, ast.Lambda):
        return False
    if any(is_decorated(value.node, name) for name in _ABSTRACT):
        return True
    match [statement for statement in value.node.body if not is_docstring(statement)]:
        case [ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name)))]:
            return name == "NotImplementedError"
        case _:
            return False


def _property_values(
    resolver: Resolver, function: ast.FunctionDef | ast.AsyncFunctionDef, cls: Class
) -> frozenset[Value]:
    values = [
        resolver.values(node.value, cls.module)
        for node in walk(function)
        if isinstance(node, ast.Return) and node.value is not None
    ]
    return union(values)
