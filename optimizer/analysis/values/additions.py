"""What is put into objects after they are made: into lists and dicts, attributes, and tensors in place."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ..autograd.graph_names import mutates
from ..calls.signatures import parameter_of
from ..program.attribute_reads import literal_name
from ..program.scopes import Assigned, Binding, Parameter
from ..program.syntax import FunctionNode, Module
from ..program.trees import is_name, walk
from .resolver import Resolver
from .unpacking import assigned_parts, unpacked_targets
from .values import Function

_ASSIGNMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)
_MOST_ALIASES = 6
_Stored = tuple[ast.expr, Module]


@dataclass
class _Found:
    """What is put into names (by binding) and attributes (by name), and what attributes are assigned."""

    bindings: dict[Binding, list[_Stored]] = field(default_factory=dict[Binding, list[_Stored]])
    attributes: dict[str, list[_Stored]] = field(default_factory=dict[str, list[_Stored]])
    assigned: dict[str, list[_Stored]] = field(default_factory=dict[str, list[_Stored]])


class Additions:
    """Answers for one project, by the name or attribute an object is held in.

    What is added to an alias (``o = self.outs; o.append(x)``) or to a parameter counts for what it stands for.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def to_binding(self, binding: Binding) -> list[_Stored]:
        """What is put into the object that ``binding`` gives its name."""
        return self._found.bindings.get(binding, [])

    def to_attribute(self, name: str) -> list[_Stored]:
        """What is put into the objects that attributes called ``name`` hold."""
        return self._found.attributes.get(name, [])

    def assigned_to_attribute(self, name: str) -> list[_Stored]:
        """What attributes called ``name`` are assigned."""
        return self._found.assigned.get(name, [])

    def is_stored_on_self(self, name: str) -> bool:
        """Whether a method assigns ``self.<name>``, so that the name need not mean what it does on a tensor."""
        return name in self._on_self

    @cached_property
    def _on_self(self) -> frozenset[str]:
        return frozenset(
            name for module in self._resolver.project.modules for _, name in module.self_assignments
        )

    @cached_property
    def _found(self) -> _Found:
        found = _Found()
        for module in self._resolver.project.modules:
            for target, value in _assigned(module):
                if isinstance(target, ast.Attribute):
                    found.assigned.setdefault(target.attr, []).append((value, module))
            put_in = [(target, (value, module)) for target, value in _added(module)]
            for call in module.calls:
                put_in += self.by_callbacks(call, module)
            for target, stored in put_in:
                for holder, owner in self.holders(target, module):
                    if isinstance(holder, ast.Attribute):
                        found.attributes.setdefault(holder.attr, []).append(stored)
                    else:
                        for binding in _bindings(holder, owner):
                            found.bindings.setdefault(binding, []).append(stored)
        return found

    def by_callbacks(self, call: ast.Call, module: Module) -> Iterator[tuple[ast.expr, _Stored]]:
        """What an object's unseen method may keep of what it is given: ``graph.apply_edges(self.score)``."""
        func = call.func
        if not isinstance(func, ast.Attribute) or self._resolver.callees(call, module):
            return
        for given in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(given, ast.Lambda) and _calls_own(given.body):
                yield func.value, (given.body, module)
            elif _is_own(given):
                for value in self._resolver.values(given, module):
                    if isinstance(value, Function):
                        for result in _returned_by(value):
                            yield func.value, (result, value.module)

    def holders(
        self, expression: ast.expr, module: Module
    ) -> Iterator[tuple[ast.Name | ast.Attribute, Module]]:
        """The names and attributes that hold the object behind ``expression``, aliases and arguments followed."""
        pending = [(expression, module)]
        seen: set[ast.AST] = set()
        while pending and len(seen) < _MOST_ALIASES**2:
            current, owner = pending.pop()
            holder = container(current)
            if holder in seen or not isinstance(holder, ast.Name | ast.Attribute):
                continue
            seen.add(holder)
            yield holder, owner
            if isinstance(holder, ast.Name):
                for binding in _bindings(holder, owner):
                    pending += self._aliases(binding, owner)

    def _aliases(self, binding: Binding, module: Module) -> Iterator[tuple[ast.expr, Module]]:
        source = binding.source
        if isinstance(source, Assigned) and isinstance(
            source.value, ast.Name | ast.Attribute | ast.Subscript
        ):
            yield source.value, module
        elif isinstance(source, Parameter) and not isinstance(source.function, ast.Lambda):
            yield from self._arguments(source.function, binding.name)

    def _arguments(self, function: FunctionNode, name: str) -> Iterator[tuple[ast.expr, Module]]:
        for site in self._resolver.call_sites(function):
            for given in [*site.call.args, *(k.value for k in site.call.keywords)]:
                if parameter_of(function, given, site.call, site.bound) == name:
                    yield given, site.module


def _calls_own(body: ast.expr) -> bool:
    """Whether an expression calls something of its object: ``self.fc(x)``."""
    return any(isinstance(node, ast.Call) and _is_own(node.func) for node in walk(body))


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and is_name(node.value, "self")


def _returned_by(function: Function) -> list[ast.expr]:
    returns = (node for node in walk(function.node) if isinstance(node, ast.Return))
    return [node.value for node in returns if node.value is not None]


def container(expression: ast.expr) -> ast.expr:
    """The name or attribute behind ``x[i][j]``, ``x.setdefault(k, [])``, ``x.view(-1)``."""
    while True:
        if isinstance(expression, ast.Subscript | ast.Starred):
            expression = expression.value
        elif isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
            expression = expression.func.value
        else:
            return expression


def _bindings(name: ast.Name, module: Module) -> list[Binding]:
    found = module.scope(name).lookup(name.id)
    return found[1] if found is not None else []


def assignments(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment, each with the expression it gets its value, or a part of it, from."""
    if isinstance(node, ast.Assign):
        return [pair for target in node.targets for pair in assigned_parts(target, node.value)]
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
        return [(node.target, node.value)]
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return [(target, node.iter) for target, _ in unpacked_targets(node.target)]
    return []


def _assigned(module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in module.nodes_of(*_ASSIGNMENTS):
        yield from assignments(node)
    for call in module.calls:
        name = literal_name(call) if getattr(call.func, "id", "") == "setattr" else None
        if name is not None and len(call.args) == 3:
            yield ast.Attribute(call.args[0], name, ast.Store()), call.args[2]


def added(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What ``node`` puts into an object, with the expression for that object."""
    for target, value in assignments(node):
        if isinstance(target, ast.Subscript):
            yield target.value, value
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and isinstance(func, ast.Attribute) and mutates(func.attr):
        for argument in [*node.args, *(k.value for k in node.keywords)]:
            yield func.value, argument


def _added(module: Module) -> Iterable[tuple[ast.expr, ast.expr]]:
    return (pair for node in module.nodes_of(*_ASSIGNMENTS, ast.Call) for pair in added(node))
