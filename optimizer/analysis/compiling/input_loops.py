"""Loops over the lists that a ``collate_fn`` hands to a network: traced turn by turn, for every length anew."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..calls.reach import lexical_nodes
from ..calls.signatures import argument_for
from ..facts import DataLoader, Model
from ..program.classes import class_attribute
from ..program.reaching import bindings_of
from ..program.scopes import Parameter
from ..program.syntax import FunctionNode, Module
from ..values.resolver import Resolver
from ..values.values import Function
from .graph_breaks import CompileObstacle

_AROUND = frozenset({"enumerate", "zip", "reversed"})


def loop_over_input(
    resolver: Resolver, network: Model, loaders: Iterable[DataLoader]
) -> CompileObstacle | None:
    """A loop of ``network`` over an argument of its forward pass, where a function of the script's own collates its batches."""
    if network.cls is None or not any(_collates(resolver, loader) for loader in loaders):
        return None
    for forward in class_attribute(resolver, network.cls, "forward"):
        if isinstance(forward, Function) and isinstance(forward.node, ast.FunctionDef):
            names = frozenset(arg.arg for arg in forward.node.args.args[1:])
            found = next(_loops(resolver, forward.node, forward.module, names, frozenset()), None)
            if found is not None:
                return found
    return None


def _collates(resolver: Resolver, loader: DataLoader) -> bool:
    collate = loader.arguments.get("collate_fn")
    return collate is not None and any(
        isinstance(value, Function) for value in resolver.values(collate.value, collate.module)
    )


def _loops(
    resolver: Resolver,
    function: FunctionNode,
    module: Module,
    names: frozenset[str],
    within: frozenset[FunctionNode],
) -> Iterator[CompileObstacle]:
    """The loops of ``function`` over one of its parameters ``names``, those of the functions it hands one to included."""
    for node in lexical_nodes(function.body):
        match node:
            case ast.For(iter=iterable):
                over = [iterable]
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                over = [loop.iter for loop in node.generators]
            case ast.Call():
                for callee in resolver.callees(node, module):
                    inner = callee.node
                    if isinstance(inner, ast.FunctionDef) and inner not in within | {function}:
                        given = frozenset(_given(callee, node, module, names))
                        if given:
                            yield from _loops(
                                resolver, inner, callee.module, given, within | {function}
                            )
                continue
            case _:
                continue
        for name in (name for iterable in over for name in _gone_over(iterable)):
            if name.id in names and _is_parameter(name, module):
                why = f"a loop over `{name.id}`, a list that a `collate_fn` may make longer or shorter, is unrolled"
                yield CompileObstacle(module, node, why)


def _gone_over(iterable: ast.expr) -> Iterator[ast.Name]:
    match iterable:
        case ast.Name():
            yield iterable
        case ast.Call(func=ast.Name(id=function), args=given) if function in _AROUND:
            yield from (inner for one in given for inner in _gone_over(one))
        case _:
            pass


def _is_parameter(name: ast.Name, module: Module) -> bool:
    return all(isinstance(binding.source, Parameter) for binding in bindings_of(module, name))


def _given(
    callee: Function, call: ast.Call, module: Module, names: frozenset[str]
) -> Iterator[str]:
    """The parameters of ``callee`` that get one of the parameters ``names`` in ``call``."""
    assert isinstance(callee.node, ast.FunctionDef)
    for parameter in callee.node.args.args:
        passed = argument_for(callee.node, parameter.arg, call, callee.bound)
        given = passed.given if passed is not None else None
        if isinstance(given, ast.Name) and given.id in names and _is_parameter(given, module):
            yield parameter.arg
