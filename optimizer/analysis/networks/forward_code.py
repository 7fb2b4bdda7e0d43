"""The code a network runs in its forward pass: that of its own class and of every layer class it is made of."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from ..calls.reach import Called, Reached, called, lexical_nodes
from ..facts import Model
from ..program.classes import class_attribute
from ..program.syntax import FunctionNode, Module
from ..training.loops import is_forward
from ..values.composition import composed_of
from ..values.resolver import Resolver
from ..values.values import Class, External, Function, Instance, Made, Value
from .models import is_module_class, model_of, models_and_copies, unwrap_copies


def networks_run(resolver: Resolver, nodes: Iterable[Reached]) -> tuple[Model, ...]:
    """The networks whose forward ``nodes`` run, layers of a network (``self.conv(x)``) included.

    A copy of a network runs the forward of the one that it was made of.
    """
    found: dict[ast.Call, Model] = {}
    for called_values in _run(resolver, nodes):
        for value in unwrap_copies(resolver, called_values):
            model = model_of(resolver, value)
            if model is not None:
                found.setdefault(model.node, model)
    return tuple(found.values())


def weights_read(resolver: Resolver, nodes: Iterable[Reached]) -> frozenset[ast.Call]:
    """The calls that made the networks whose weights ``nodes`` read by running them; a deep copy has weights of its own."""
    return frozenset(
        model.node
        for called_values in _run(resolver, nodes)
        for model in models_and_copies(resolver, called_values)
    )


def _run(resolver: Resolver, nodes: Iterable[Reached]) -> Iterator[frozenset[Value]]:
    """What each forward pass among ``nodes`` may call."""
    for reached in nodes:
        node, module = reached.node, reached.module
        if isinstance(node, ast.Call) and is_forward(resolver, node, module):
            yield resolver.values(node.func, module)


def layer_classes(resolver: Resolver, models: Iterable[Model]) -> tuple[Class, ...]:
    """The first-party module classes ``models`` are made of, their own classes first.

    Also those of parts that were made before and are handed to them, in lists or by name: ``Seq2Seq(encoder, decoder)``.
    """
    pending: list[Class] = []
    seen: set[FunctionNode | ast.Lambda] = set()
    for model in models:
        pending.extend(_classes_given(resolver, model))
        pending.extend(_classes_made(resolver, [model.node], model.module, seen))
    found: dict[ast.ClassDef, Class] = {}
    while pending:
        cls = pending.pop(0)
        if cls.node in found:
            continue
        found[cls.node] = cls
        for method in cls.node.body:
            if isinstance(method, ast.FunctionDef):
                pending.extend(_classes_made(resolver, method.body, cls.module, seen))
        pending.extend(_first_party_module_bases(resolver, cls))
    return tuple(found.values())


def parts_given(resolver: Resolver, model: Model) -> Iterator[Made]:
    """What ``model`` is made of by its arguments, itself first: layers that were made before it, in lists too."""
    made = Made(model.node, model.module, model.cls or External(model.library_name or ""))
    for value in composed_of(resolver, [made]):
        if isinstance(value, Made):
            yield value


def _classes_given(resolver: Resolver, model: Model) -> Iterator[Class]:
    for part in parts_given(resolver, model):
        if isinstance(part.maker, Class) and is_module_class(resolver, part.maker):
            yield part.maker


def make_one_of(resolver: Resolver, models: Iterable[Model], parts: Iterable[Model]) -> bool:
    """Whether a class that ``models`` are made of makes one of ``parts`` in its own code."""
    makers = {part.module.enclosing_class(part.node) for part in parts}
    return any(cls.node in makers for cls in layer_classes(resolver, models))


def _classes_made(
    resolver: Resolver,
    roots: Iterable[ast.AST],
    module: Module,
    seen: set[FunctionNode | ast.Lambda],
) -> Iterator[Class]:
    """The module classes instantiated by ``roots`` and by the functions they call, each function once."""
    pending = [(list(roots), module)]
    while pending:
        nodes, current = pending.pop()
        for node in lexical_nodes(nodes):
            if not isinstance(node, ast.Call):
                continue
            for value in resolver.values(node.func, current):
                if isinstance(value, Class) and is_module_class(resolver, value):
                    yield value
                elif isinstance(value, Function) and value.node not in seen:
                    seen.add(value.node)
                    body = value.node.body
                    pending.append((list(body) if isinstance(body, list) else [body], value.module))


def _first_party_module_bases(resolver: Resolver, cls: Class) -> Iterator[Class]:
    for base in cls.node.bases:
        for value in resolver.values(base, cls.module):
            if isinstance(value, Class) and is_module_class(resolver, value):
                yield value


def forward_code(resolver: Resolver, models: Iterable[Model]) -> tuple[Reached, ...]:
    """Every node the forward passes of ``models`` run, each function once."""
    found: list[Reached] = []
    seen: set[FunctionNode | ast.Lambda] = set()
    for cls in layer_classes(resolver, models):
        for value in class_attribute(resolver, cls, "forward"):
            if isinstance(value, Function) and value.node not in seen:
                found.extend(_new_nodes(resolver, value, seen))
    return tuple(found)


def _new_nodes(
    resolver: Resolver, function: Function, seen: set[FunctionNode | ast.Lambda]
) -> Iterator[Reached]:
    """The nodes of ``function`` and of the functions it calls, as far as none of them is in ``seen``."""
    pending: list[Called] = [(function.node, function.module)]
    while pending:
        current, module = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in lexical_nodes(
            current.body if isinstance(current.body, list) else [current.body]
        ):
            yield Reached(node, module, False)
            if isinstance(node, ast.Call):
                pending.extend(called(resolver, node, module))


def library_networks(models: Iterable[Model]) -> tuple[Model, ...]:
    """Those of ``models`` whose class is a library's."""
    return tuple(model for model in models if model.cls is None)


def called_names(resolver: Resolver, reached: Reached) -> frozenset[str]:
    """The library names a call node may call; methods of library objects included (``torch.nn.BCELoss``)."""
    node = reached.node
    if not isinstance(node, ast.Call):
        return frozenset()
    names = resolver.names(node.func, reached.module)
    made = {
        value.maker.name
        for value in resolver.values(node.func, reached.module)
        if isinstance(value, Made) and isinstance(value.maker, External)
    }
    return names | made


def method_name(resolver: Resolver, reached: Reached) -> str | None:
    """``masked_fill`` for a call of that method on a tensor, as far as can be told: on nothing else that is known."""
    node = reached.node
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    values = resolver.values(node.func, reached.module)
    return None if any(_is_known(value) for value in values) else node.func.attr


def _is_known(value: Value) -> bool:
    if isinstance(value, External):
        package, _, name = value.name.partition(".")
        # What no import and no assignment explains passes for a builtin.
        return package != "builtins" or hasattr(builtins, name.partition(".")[0])
    return isinstance(value, (Function, Class, Made, Instance))
