"""Whether layers of a network make only what the training step leaves out of its loss."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..autograd.grad_modes import suspended_around
from ..autograd.gradients import Gradients
from ..calls.signatures import first_parameter, parameter_of
from ..facts import CallFact
from ..obstacles import Obstacle
from ..program.classes import class_attribute
from ..program.name_uses import NameUses
from ..program.reaching import bindings_of, is_read
from ..program.scopes import Assigned, Binding, Defined, Imported, Iterated, Parameter
from ..program.syntax import Module
from ..program.trees import walk
from ..tensors.returned_values import returned_by
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_targets
from ..values.values import Class, Function, Value
from .networks import Networks

_MOST_CALLS = 3


def output_left_out(resolver: Resolver, forward: CallFact) -> Obstacle | None:
    """A part of what the network gives in ``forward`` that no gradient comes back to, and that has layers of its own.

    Those layers get no gradients, although the forward pass runs them.
    """
    networks = Networks(resolver)
    read = _Reads(resolver, networks).parts(forward.node, forward.module)
    if read is None:
        return None
    for function in networks.functions_called(forward.node, forward.module):
        layers = _Layers(resolver, function)
        for returned in returned_by(function):
            parts = _written_parts(returned, function, networks)
            made_by = {part: layers.of(node) for part, node in parts.items()}
            trained = {layer for part in read for layer in made_by.get(part, ())}
            for part, node in parts.items():
                if part not in read and made_by[part] - trained:
                    what = function.module.code(node)
                    why = f"the loss leaves out `{what}`, which is made by layers of its own"
                    return Obstacle(function.module, node, why)
    return None


class _Reads:
    """Finds which parts of a value gradients come back to."""

    def __init__(self, resolver: Resolver, networks: Networks) -> None:
        self._resolver = resolver
        self._networks = networks
        self._gradients = Gradients(resolver, networks)
        self._uses = NameUses()

    def parts(
        self, node: ast.expr, module: Module, calls: int = _MOST_CALLS
    ) -> frozenset[int | str] | None:
        """The positions, keys and attributes of ``node`` that are read; None where it may be read as a whole."""
        parent = module.parents[node]
        match parent:
            case ast.Subscript(value=value, slice=ast.Constant(value=int() | str() as key)) if (
                value is node
            ):
                return frozenset({key}) if self._trains(parent, module) else frozenset()
            case ast.Attribute(value=value, attr=attr) if value is node:
                return frozenset({attr}) if self._trains(parent, module) else frozenset()
            case ast.Assign(value=value, targets=[target]) if value is node:
                return self._assigned(target, module, calls)
            case ast.Call() if node is not parent.func and calls > 0:
                return self._given(node, parent, module, calls)
            case _:
                return None

    def _assigned(
        self, target: ast.expr, module: Module, calls: int
    ) -> frozenset[int | str] | None:
        if isinstance(target, ast.Name):
            return self._union(self._reads(target, module), module, calls)
        read: set[int | str] = set()
        for part, path in unpacked_targets(target):
            if not path or path[0] == "*" or not isinstance(part, ast.Name):
                return None
            if any(self._trains(use, module) for use in self._reads(part, module)):
                read.add(path[0])
        return frozenset(read)

    def _reads(self, target: ast.Name, module: Module) -> list[ast.expr]:
        found = module.scope(target).lookup(target.id)
        bindings = found[1] if found is not None else []
        return [
            use
            for binding in bindings
            if binding.node is target
            for use in self._uses.of(binding, module)
            if is_read(use, module) and self._trains(use, module)
        ]

    def _given(
        self, node: ast.expr, call: ast.Call, module: Module, calls: int
    ) -> frozenset[int | str] | None:
        """What the functions that ``call`` runs read of their argument ``node``."""
        read: frozenset[int | str] = frozenset()
        functions = list(self._networks.functions_called(call, module))
        if not functions:
            return None
        for function in functions:
            if isinstance(function.node, ast.Lambda):
                return None
            name = parameter_of(function.node, node, call, bound=function.bound)
            found = self._of_parameter(function, name, calls - 1)
            if found is None:
                return None
            read |= found
        return read

    def _of_parameter(
        self, function: Function, name: str | None, calls: int
    ) -> frozenset[int | str] | None:
        module = function.module
        if name is None:
            return None
        uses = [
            use
            for use in module.names_of(name)
            if module.function(use) is function.node and isinstance(use.ctx, ast.Load)
        ]
        if any(
            not isinstance(binding.source, Parameter)
            for use in uses
            for binding in bindings_of(module, use)
        ):
            return None
        return self._union([use for use in uses if self._trains(use, module)], module, calls)

    def _union(
        self, uses: Iterable[ast.expr], module: Module, calls: int
    ) -> frozenset[int | str] | None:
        read: frozenset[int | str] = frozenset()
        for use in uses:
            found = self.parts(use, module, calls)
            if found is None:
                return None
            read |= found
        return read

    def _trains(self, use: ast.expr, module: Module) -> bool:
        """Whether a gradient may come back to ``use``."""
        if suspended_around(self._resolver, use, module):
            return False
        for around in module.ancestors(use):
            if isinstance(around, ast.stmt):
                break
            if isinstance(around, ast.expr) and self._gradients.free(around, module):
                return False
        return True


class _Layers:
    """Finds the layers that values of a ``forward`` are made of, by the attributes of ``self`` that hold them."""

    def __init__(self, resolver: Resolver, forward: Function) -> None:
        self._resolver = resolver
        self._forward = forward

    def of(self, node: ast.expr) -> frozenset[str]:
        """The layers that ``node`` is made of."""
        found: set[str] = set()
        self._add(node, self._forward, found, set())
        return frozenset(found)

    def _add(self, node: ast.AST, method: Function, found: set[str], seen: set[ast.AST]) -> None:
        if node in seen:
            return
        seen.add(node)
        this = None if isinstance(method.node, ast.Lambda) else first_parameter(method.node)
        for part in walk(node):
            match part:
                case ast.Attribute(value=ast.Name(id=name)) if name == this:
                    self._add_attribute(part.attr, method, found, seen)
                case ast.Name(ctx=ast.Load()) if part.id != this:
                    for binding in bindings_of(method.module, part):
                        for source in _sources(binding, method.module):
                            self._add(source, method, found, seen)
                case _:
                    pass

    def _add_attribute(
        self, name: str, method: Function, found: set[str], seen: set[ast.AST]
    ) -> None:
        owner = method.module.enclosing_class(method.node)
        held: frozenset[Value] = frozenset()
        if owner is not None:
            held = class_attribute(self._resolver, Class(owner, method.module), name)
        methods = [value for value in held if isinstance(value, Function)]
        if not methods:
            found.add(name)
        for called in methods:
            self._add(called.node, called, found, seen)


def _sources(binding: Binding, module: Module) -> list[ast.AST]:
    match binding.source:
        case Assigned(value):
            return [value]
        case Iterated(iterable):
            return [iterable]
        case Parameter() | Defined() | Imported():
            return []
        case _:
            return [module.statement(binding.node)]


def _written_parts(
    node: ast.expr | None, function: Function, networks: Networks
) -> dict[int | str, ast.expr]:
    """The parts of a tuple, a dictionary or an object that ``function`` returns, where they are written out, by how they are read."""
    match node:
        case ast.Name():
            sources = [binding.source for binding in bindings_of(function.module, node)]
            if len(sources) == 1 and isinstance(sources[0], Assigned) and not sources[0].path:
                return _written_parts(sources[0].value, function, networks)
        case ast.Tuple(elts=elements) if not any(isinstance(e, ast.Starred) for e in elements):
            return dict(enumerate(elements))
        case ast.Dict(keys=keys, values=values):
            return {
                key.value: value
                for key, value in zip(keys, values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
        case ast.Call(args=[], keywords=keywords) if not networks.is_call(node, function.module):
            return {keyword.arg: keyword.value for keyword in keywords if keyword.arg is not None}
        case _:
            pass
    return {}
