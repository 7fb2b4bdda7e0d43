"""Which layers a call may run: ``self.fc(x)``, one out of a list (``for layer in self.layers: x = layer(x)``), the last of a sequence."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..program.classes import class_attribute
from ..program.reaching import bindings_of
from ..program.syntax import Module
from ..torch_names import REWEIGHTING
from ..values.resolver import Resolver
from ..values.values import (
    Attribute,
    Class,
    Display,
    Element,
    External,
    Made,
    Unknown,
    Value,
    innermost,
)

_SEQUENCE = "torch.nn.Sequential"
_LISTS = frozenset({"torch.nn.ModuleList", "torch.nn.ModuleDict"})
_PASSING_ON = frozenset(
    f"torch.nn.{name}"
    for name in "Dropout Dropout1d Dropout2d Dropout3d Identity Flatten Unflatten".split()
)
"""Layers that hand on what they are given, in another shape or with zeros in it."""
_ADDING = frozenset({"append", "extend", "insert", "add_module", "register_module"})
_DEEPEST = 6

_Place = tuple[ast.expr, Module]


def called_layers(resolver: Resolver, callee: ast.expr, module: Module) -> list[Value]:
    """What ``callee`` may be when it is called: layers in place of containers that hold them and functions that return them.

    An :class:`Element` stands for one of a container whose contents are not all found.
    """
    return list(_layers(resolver, resolver.values(callee, module), _DEEPEST))


def held_layers(resolver: Resolver, value: Value) -> list[Value]:
    """What ``value`` may be where it is an element of a container of ``torch.nn``, as far as its contents are found."""
    container = _container(value) if isinstance(value, Element) else None
    if container is None:
        return []
    places = _contents(resolver, container, _DEEPEST)
    return [held for node, module in places for held in resolver.values(node, module)]


def library_layer(resolver: Resolver, value: Value) -> str | None:
    """The name in ``torch.nn`` of the layer whose forward pass runs when ``value`` is called; None where it is none.

    A class of the script's own runs that of the layer it derives from, where it has none itself.
    """
    match value:
        case Made(_, _, External(name)):
            return _of_nn([name])
        case Made(_, _, Class() as cls) if not class_attribute(resolver, cls, "forward"):
            return _of_nn(resolver.base_names(cls))
        case Attribute(Made(call, module, External("builtins.super")), "forward" | "__call__"):
            cls = module.enclosing_class(call)
            names = resolver.base_names(Class(cls, module)) if cls is not None else ()
            return _of_nn(names)
        case _:
            return None


def _of_nn(names: Iterable[str]) -> str | None:
    # `nn.Module` has no forward pass of its own: whatever else a class derives from runs.
    found = (
        name.rpartition(".") for name in sorted(names, key=lambda n: (n == "torch.nn.Module", n))
    )
    return next((last for package, _, last in found if package == "torch.nn"), None)


def _layers(resolver: Resolver, values: Iterable[Value], depth: int) -> Iterator[Value]:
    for value in values:
        match value:
            case _ if not depth:
                yield Unknown("layers in too many lists")
            case Made(call, module, External(name)) if name in REWEIGHTING and call.args:
                inner = resolver.values(call.args[0], module)
                yield from _layers(resolver, inner, depth - 1)
            case Made(call, module, External(name)) if name == _SEQUENCE and call.args:
                last = _last_of(resolver, call, module)
                is_many = isinstance(last, ast.Starred)
                places = _elements(resolver, last, module, depth) if is_many else [(last, module)]
                yield from _at(resolver, places, depth)
            case Element() if (container := _container(value)) is not None:
                held = list(_at(resolver, _contents(resolver, container, depth), depth))
                is_found = held and all(_is_layer(resolver, one) for one in held)
                yield from held if is_found else [value]
            case Made(_, _, External(name)) if name in _LISTS:
                yield from _at(resolver, _contents(resolver, value, depth), depth)
            case _:
                yield value


def _is_layer(resolver: Resolver, value: Value) -> bool:
    is_own = isinstance(value, Made) and isinstance(value.maker, Class)
    return is_own or library_layer(resolver, value) is not None


def _last_of(resolver: Resolver, sequence: ast.Call, module: Module) -> ast.expr:
    """The last layer of ``sequence`` that computes something."""
    for given in reversed(sequence.args):
        if not resolver.maker_names(given, module) & _PASSING_ON:
            return given
    return sequence.args[-1]


def _at(resolver: Resolver, places: Iterable[_Place], depth: int) -> Iterator[Value]:
    for node, module in places:
        yield from _layers(resolver, resolver.values(node, module), depth - 1)


def _container(value: Value) -> Made | None:
    """The container of ``torch.nn`` that ``value`` is an element of."""
    value = innermost(value)
    if isinstance(value, Made) and isinstance(value.maker, External):
        return value if value.maker.name in _LISTS | {_SEQUENCE} else None
    return None


def _contents(resolver: Resolver, container: Made, depth: int) -> list[_Place]:
    """What ``container`` is made of, and what is added to it."""
    found = [
        place
        for given in container.call.args
        for place in _elements(resolver, given, container.module, depth)
    ]
    return found + _added(resolver, container, container.module)


def _elements(resolver: Resolver, items: ast.expr, module: Module, depth: int) -> list[_Place]:
    """The elements of the list, or of what makes one, that ``items`` is; itself, where it is a layer."""
    match items:
        case ast.Starred(value=inner) | ast.DictComp(value=inner):
            return _elements(resolver, inner, module, depth)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [p for e in elements for p in _elements(resolver, e, module, depth)]
        case ast.Dict(values=elements):
            return [p for e in elements for p in _elements(resolver, e, module, depth)]
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
            return [(element, module)]
        case ast.BinOp(left, ast.Add() | ast.Mult(), right):
            return [
                p for side in (left, right) for p in _elements(resolver, side, module, depth - 1)
            ]
        case ast.Name() | ast.Attribute() if depth:
            return _listed(resolver, items, module, depth) or [(items, module)]
        case ast.Constant():
            return []
        case _:
            return [(items, module)]


def _listed(
    resolver: Resolver, items: ast.Name | ast.Attribute, module: Module, depth: int
) -> list[_Place]:
    """The elements of the list that ``items`` names, those that are appended to it included."""
    found: list[_Place] = []
    if isinstance(items, ast.Name):
        for binding in bindings_of(module, items):
            changed = module.parents.get(binding.node)
            if isinstance(changed, ast.AugAssign) and isinstance(changed.op, ast.Add):
                found += _elements(resolver, changed.value, module, depth - 1)
                found += _elements(resolver, changed.target, module, depth - 1)
    for value in resolver.values(items, module):
        if isinstance(value, Display):
            found += _elements(resolver, value.node, value.module, depth - 1)
            found += _added(resolver, value, value.module)
    return found


def _added(resolver: Resolver, holder: Made | Display, module: Module) -> list[_Place]:
    """What is appended in ``module`` to the container or list ``holder``."""
    found: list[_Place] = []
    for call in module.calls:
        if not (isinstance(call.func, ast.Attribute) and call.func.attr in _ADDING and call.args):
            continue
        if holder in resolver.values(call.func.value, module):
            found += _elements(resolver, call.args[-1], module, 1)
    return found
