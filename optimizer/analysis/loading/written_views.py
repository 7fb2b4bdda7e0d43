"""Whether code writes through a view into the tensor it is a view of: a copy in its place would not be one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.signatures import parameter_of
from ..program.name_uses import NameUses
from ..program.syntax import Module, last_identifier
from ..program.trees import is_name, walk
from ..tensors.overwrites import is_inplace_method, says_inplace
from ..values.resolver import Resolver
from ..values.values import External, Function, Made


def is_written(resolver: Resolver, view: ast.Call, module: Module) -> bool:
    """Whether the result of ``view``, or the variable it is assigned to, may be written to in place."""
    places = places_of(view, module)
    return places is None or any(_writes(resolver, place, module) for place in places)


def may_be_written(
    resolver: Resolver, place: ast.expr, module: Module, depth: int = 8, *, inside: bool = False
) -> bool:
    """Whether what stands at ``place``, a view of it or another name for it may be written to, here or in a function that is given it.

    Without looking ``inside``, every function of the script's own may do so.
    """
    if depth == 0:
        return True
    parent = module.parents[place]
    if isinstance(parent, ast.Call) and parent.func is not place:
        is_library_method = isinstance(parent.func, ast.Attribute) and not (
            resolver.names(parent.func, module)
            or resolver.callees(parent, module)
            or resolver.maker_names(parent.func, module)
        )
        if is_library_method:  # `scores.masked_fill_(mask, ..)` writes to the scores
            return False
    if _writes(resolver, place, module):
        return True
    match parent:
        case ast.Attribute():
            call = module.parents[parent]
            is_called = isinstance(call, ast.Call) and call.func is parent
            view = call if is_called and isinstance(call, ast.Call) else parent
            return may_be_written(resolver, view, module, depth - 1, inside=inside)
        case ast.Subscript(value=value) if value is place:
            return may_be_written(resolver, parent, module, depth - 1, inside=inside)
        case ast.Assign(targets=targets, value=value) if value is place:
            uses = [u for t in targets if isinstance(t, ast.Name) for u in _uses(t, module)]
            return any(
                may_be_written(resolver, use, module, depth - 1, inside=inside) for use in uses
            )
        case ast.Call() | ast.keyword():
            called = parent if isinstance(parent, ast.Call) else module.parents[parent]
            callees = resolver.callees(called, module) if isinstance(called, ast.Call) else ()
            if not inside or not isinstance(called, ast.Call):
                return bool(callees)
            return any(_writes_given(resolver, c, place, called, depth - 1) for c in callees)
        case _:
            return False


def _writes_given(
    resolver: Resolver, function: Function, given: ast.expr, call: ast.Call, depth: int
) -> bool:
    """Whether ``function`` may write to the argument ``given`` of ``call``."""
    if isinstance(function.node, ast.Lambda):
        return True
    name = parameter_of(function.node, given, call, function.bound)
    if name is None:
        return True
    return any(
        may_be_written(resolver, use, function.module, depth, inside=True)
        for use in walk(function.node)
        if is_name(use, name)
    )


def _uses(target: ast.Name, module: Module) -> list[ast.expr]:
    """Where the value is used that the variable gets at ``target``."""
    found = module.scope(target).lookup(target.id)
    bindings = [b for b in (found[1] if found else []) if b.node is target]
    return [use for binding in bindings for use in NameUses().of(binding, module)]


def places_of(view: ast.expr, module: Module) -> list[ast.expr] | None:
    """Where the result of ``view`` is used; None where it is kept in something else than a variable."""
    match module.parents[view]:
        case ast.Assign(targets=[ast.Name() as target]):
            return _uses(target, module)
        case ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
            return None
        case _:
            return [view]


def _writes(resolver: Resolver, place: ast.expr, module: Module) -> bool:
    parent = module.parents[place]
    match parent:
        case ast.AugAssign(target=target):
            return target is place
        case ast.Subscript(value=value) if value is place:
            return not isinstance(parent.ctx, ast.Load)
        case ast.Attribute(attr=attr):
            return is_inplace_method(attr) or attr == "data"
        case ast.keyword(arg=arg):
            return arg == "out"
        case ast.Call(func=func) if func is not place:
            calls = [parent, *_made_layers(resolver, parent, module)]
            return is_inplace_method(last_identifier(func)) or any(map(says_inplace, calls))
        case _:
            return False


def _made_layers(resolver: Resolver, call: ast.Call, module: Module) -> Iterator[ast.Call]:
    """The calls that made the layer of PyTorch that ``call`` runs."""
    for value in resolver.values(call.func, module):
        if isinstance(value, Made) and isinstance(value.maker, External):
            yield value.call
