"""What ``kwargs["model"]`` is in a function that takes ``**kwargs``, and what it hands on as ``**kwargs``: what its calls give by name."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..program.scopes import Parameter
from ..program.syntax import FunctionNode, Module
from ..values.values import Unknown, Value

if TYPE_CHECKING:
    from ..values.resolver import CallSite, Resolver

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


def handed_on(
    resolver: Resolver, name: str, site: CallSite, within: frozenset[ast.AST] = frozenset()
) -> tuple[list[tuple[ast.expr, Module]], bool] | None:
    """What the call ``site`` gives for a parameter ``name`` that only its ``**kwargs`` can hold: those of the function it stands in.

    With it, whether some call of that function leaves it out, so that the default holds. None where that cannot be told.
    """
    hidden = [keyword.value for keyword in site.call.keywords if keyword.arg is None]
    if len(hidden) != 1 or any(isinstance(given, ast.Starred) for given in site.call.args):
        return None
    function = _function_of(hidden[0], site.module)
    if function is None or function in within:
        return None
    arguments = function.args
    if name in {a.arg for a in [*arguments.args, *arguments.kwonlyargs]}:
        return [], True
    given: list[tuple[ast.expr, Module]] = []
    is_left_out = False
    for caller in resolver.call_sites(function):
        keyword = next((k for k in caller.call.keywords if k.arg == name), None)
        if keyword is not None:
            given.append((keyword.value, caller.module))
        elif all(k.arg is not None for k in caller.call.keywords):
            is_left_out = True
        else:
            further = handed_on(resolver, name, caller, within | {function})
            if further is None:
                return None
            given += further[0]
            is_left_out |= further[1]
    return (given, is_left_out) if given or is_left_out else None


def _function_of(kwargs: ast.expr, module: Module) -> FunctionNode | None:
    """The function whose ``**kwargs`` is ``kwargs``, unless it changes them."""
    found = module.scope(kwargs).lookup(kwargs.id) if isinstance(kwargs, ast.Name) else None
    match found:
        case (scope, [binding]) if isinstance(binding.source, Parameter):
            function = binding.source.function
        case _:
            return None
    if binding.source.kind != "**" or isinstance(function, ast.Lambda):
        return None
    uses = (use for use in module.names_of(binding.name) if module.scope(use) is scope)
    is_kept = all(_only_reads(use, module) for use in uses)
    return function if is_kept and not function.decorator_list else None


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
