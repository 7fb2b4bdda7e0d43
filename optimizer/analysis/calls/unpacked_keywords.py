"""What ``kwargs["model"]`` is in a function that takes ``**kwargs``: what its calls give by that name."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..program.scopes import Parameter
from ..program.syntax import Module
from ..values.values import Unknown, Value

if TYPE_CHECKING:
    from ..values.resolver import Resolver

_READS = frozenset({"get", "items", "keys", "values"})


def unpacked_keyword(
    resolver: Resolver, name: ast.expr, key: str, module: Module
) -> frozenset[Value]:
    """What ``name[key]`` may be; nothing where ``name`` is no such parameter, or where it may have been changed."""
    found = module.scope(name).lookup(name.id) if isinstance(name, ast.Name) else None
    match found:
        case (scope, [binding]) if isinstance(binding.source, Parameter):
            function = binding.source.function
        case _:
            return frozenset()
    if binding.source.kind != "**" or isinstance(function, ast.Lambda):
        return frozenset()
    uses = (use for use in module.names_of(binding.name) if module.scope(use) is scope)
    if not all(_only_reads(use, module) for use in uses):
        return frozenset()
    values: set[Value] = set()
    for site in resolver.call_sites(function):
        given = next((k.value for k in site.call.keywords if k.arg == key), None)
        if given is None:
            values.add(Unknown(f"{binding.name}[{key!r}]"))
        else:
            values |= resolver.values(given, site.module)
    return frozenset(values)


def _only_reads(use: ast.Name, module: Module) -> bool:
    """Whether ``kwargs`` is looked into, or handed on as ``**kwargs``."""
    match module.parents[use]:
        case ast.Subscript(value, ctx=ast.Load()):
            return value is use
        case ast.Attribute(attr=method):
            return method in _READS
        case ast.keyword(arg=None) | ast.Compare():
            return True
        case _:
            return False
