"""Which networks an optimizer trains."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..calls.signatures import argument_for
from ..facts import Model, Optimizer
from ..program.scopes import Assigned, Iterated, Parameter
from ..program.syntax import Module
from ..program.trees import walk
from ..values.composition import call_arguments
from ..values.resolver import Resolver
from ..values.values import External
from .models import models_and_copies, models_in

PARAMETERS = frozenset({"parameters", "named_parameters"})
"""Methods that give all parameters of a network."""


def trained_networks(resolver: Resolver, optimizers: tuple[Optimizer, ...]) -> tuple[Model, ...]:
    """The networks whose ``parameters()`` an optimizer is made with, directly or through names and lists."""
    found: dict[ast.Call, Model] = {}
    for optimizer in optimizers:
        for receiver, module in _receivers(resolver, optimizer):
            for model in owners(resolver, receiver, module):
                found.setdefault(model.node, model)
    return tuple(found.values())


def trained_in_each(resolver: Resolver, optimizer: Optimizer) -> tuple[frozenset[ast.Call], ...]:
    """For each ``network.parameters()`` that ``optimizer`` is given: the calls that may have made that network."""
    return tuple(
        frozenset(model.node for model in owners(resolver, receiver, module))
        for receiver, module in _receivers(resolver, optimizer)
    )


def trained_wholes(resolver: Resolver, optimizer: Optimizer) -> tuple[frozenset[ast.Call], ...]:
    """As :func:`trained_in_each`, but of parts of a network (``model.backbone``) the calls that may have made the whole of it."""
    wholes: list[frozenset[ast.Call]] = []
    for receiver, module in _receivers(resolver, optimizer):
        node, found = receiver, frozenset[ast.Call]()
        while True:
            models = models_in(resolver, resolver.values(node, module))
            found = frozenset(model.node for model in models) or found
            if not isinstance(node, ast.Attribute | ast.Subscript):
                break
            node = node.value
        wholes.append(found)
    return tuple(wholes)


def trained_receivers(
    resolver: Resolver, optimizer: Optimizer, *, copies: bool = False
) -> tuple[Model, ...]:
    """The networks that ``optimizer`` is given parameters of, and those that hold them: for ``net.fc``, ``net`` as well.

    With ``copies``, deep copies of networks are among them.
    """
    models = models_and_copies if copies else models_in
    found: dict[ast.Call, Model] = {}
    for receiver, module in _receivers(resolver, optimizer):
        node: ast.expr | None = receiver
        while node is not None:
            for model in models(resolver, resolver.values(node, module)):
                found.setdefault(model.node, model)
            node = node.value if isinstance(node, ast.Attribute | ast.Subscript) else None
    return tuple(found.values())


def trained_or_in_part(resolver: Resolver, optimizers: Iterable[Optimizer]) -> tuple[Model, ...]:
    """The networks that ``optimizers`` are given parameters of, and those that hold them."""
    found = (model for optimizer in optimizers for model in trained_receivers(resolver, optimizer))
    return tuple({model.node: model for model in found}.values())


def _receivers(resolver: Resolver, optimizer: Optimizer) -> Iterator[tuple[ast.expr, Module]]:
    """What ``.parameters()`` is called on in what ``optimizer`` is given, and networks that libraries take whole."""
    for given in call_arguments(optimizer.node):
        if models_in(resolver, resolver.values(given, optimizer.module)):
            yield given, optimizer.module
        yield from _receivers_in(resolver, given, optimizer.module, set())


def owners(resolver: Resolver, node: ast.expr, module: Module) -> tuple[Model, ...]:
    """The network ``node`` is, or the one it is a layer of: ``model.fc``, ``model[1]``."""
    while True:
        models = models_in(resolver, resolver.values(node, module))
        if models or not isinstance(node, ast.Attribute | ast.Subscript):
            return models
        node = node.value


def _receivers_in(
    resolver: Resolver, node: ast.expr, module: Module, seen: set[ast.AST]
) -> Iterator[tuple[ast.expr, Module]]:
    """What ``.parameters()`` is called on in ``node`` and in what its names stand for, and the networks a library is given there."""
    for inner, owner in given_nodes(resolver, node, module, seen):
        if isinstance(inner, ast.Attribute) and inner.attr in PARAMETERS:
            yield inner.value, owner
        elif isinstance(inner, ast.Call) and _is_by_library(resolver, inner, owner):
            yield from _networks_given(resolver, inner, owner)


def given_nodes(
    resolver: Resolver, node: ast.expr, module: Module, seen: set[ast.AST]
) -> Iterator[tuple[ast.AST, Module]]:
    """The nodes of ``node`` and of what its names and calls stand for, down to where ``parameters`` of something are named."""
    if node in seen:
        return
    seen.add(node)
    pending: list[ast.AST] = [node]
    while pending:
        inner = pending.pop(0)
        yield inner, module
        if isinstance(inner, ast.Attribute) and inner.attr in PARAMETERS:
            continue
        pending += ast.iter_child_nodes(inner)
        if isinstance(inner, ast.Name):
            values = ((value, module) for value in _behind(inner, module))
            for value, owner in (*values, *_handed_over(resolver, inner, module)):
                yield from given_nodes(resolver, value, owner, seen)
        elif isinstance(inner, ast.Call):
            for callee in resolver.callees(inner, module):
                if isinstance(callee.node, ast.FunctionDef) and callee.node.name != "forward":
                    for returned in walk(callee.node):
                        if isinstance(returned, ast.Return) and returned.value is not None:
                            yield from given_nodes(resolver, returned.value, callee.module, seen)


def _is_by_library(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether a library makes what ``call`` gives, of the arguments alone: ``add_weight_decay(model, 0.05)``."""
    called = resolver.values(call.func, module)
    if not called or not all(isinstance(value, External) for value in called):
        return False
    return not models_in(
        resolver, resolver.values(call, module)
    )  # `nn.Sequential(a, b)` is one itself


def _networks_given(
    resolver: Resolver, call: ast.Call, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    """The networks among the arguments of ``call``, and in lists and other containers among them."""
    pending: list[ast.AST] = [*call_arguments(call)]
    seen: set[ast.AST] = set()
    while pending:
        for inner in walk(pending.pop()):
            if not isinstance(inner, ast.Name | ast.Attribute) or inner in seen:
                continue
            if isinstance(module.parents[inner], ast.Attribute | ast.Subscript):
                continue  # a part of it is given
            seen.add(inner)
            if models_in(resolver, resolver.values(inner, module)):
                yield inner, module
            elif isinstance(inner, ast.Name):
                pending += _behind(inner, module)


def _handed_over(
    resolver: Resolver, name: ast.Name, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    """What calls give for ``name``, a parameter: ``Scheduled(model.parameters())`` makes the optimizer by itself."""
    found = module.scope(name).lookup(name.id)
    for binding in found[1] if found is not None else ():
        function = binding.source.function if isinstance(binding.source, Parameter) else None
        if (
            function is None
            or isinstance(function, ast.Lambda)
            or binding.source != Parameter(function)
        ):
            continue
        for site in resolver.call_sites(function):
            passed = argument_for(function, name.id, site.call, site.bound)
            if passed is not None and passed.given is not None:
                yield passed.given, site.module


def _behind(name: ast.Name, module: Module) -> Iterator[ast.expr]:
    """What the variable ``name`` is assigned, runs over, or is grown by: ``params += [..]``, ``params.append(..)``."""
    scope = module.scope(name)
    found = scope.lookup(name.id)
    if found is None:
        return
    for binding in found[1]:
        statement = module.parents.get(binding.node)
        if isinstance(binding.source, Assigned):
            yield binding.source.value
        elif isinstance(binding.source, Iterated):
            yield binding.source.iterable
        elif isinstance(statement, ast.AugAssign):
            yield statement.value
    for use in module.names_of(name.id):
        whole: ast.expr = use  # with `groups[name]["params"]`, the last of its parts
        while isinstance(part := module.parents[whole], ast.Subscript) and part.value is whole:
            whole = part
        match module.parents[whole]:
            case ast.Attribute(attr="append" | "extend") as method:
                call = module.parents[method]
                if isinstance(call, ast.Call) and module.scope(use).lookup(use.id) == found:
                    yield from call.args
            case _:
                pass
