"""Which values certainly are floating-point tensors that a network made, and which certainly are not of half precision."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cached_property

from ..calls.callbacks import is_handed_around
from ..calls.signatures import argument_for
from ..devices.placement import move_target
from ..facts import DeviceKind
from ..loading.loaders import DATALOADER
from ..networks.called_layers import called_layers, library_layer
from ..networks.models import models_in
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Iterated, Parameter
from ..program.syntax import FunctionNode, Module
from ..tensors.returned_values import returned_by
from ..training.loops import WRAPPING_ITERATORS
from ..values.resolver import Resolver
from ..values.unpacking import Path, unpacked_element, written_part

_FLOAT_METHODS = frozenset(
    "detach cpu squeeze unsqueeze view reshape permute transpose t contiguous clone flatten mean sum softmax "
    "log_softmax sigmoid tanh exp clamp cuda to".split()
)
_FLOAT_FUNCTIONS = frozenset({"softmax", "log_softmax", "sigmoid", "tanh", "exp", "squeeze"})
_SAME_TYPE = frozenset(
    "detach cpu cuda squeeze unsqueeze view reshape permute transpose t contiguous clone flatten".split()
)
_OTHER_TYPE = frozenset(
    "float double long int bool byte argmax argmin argsort eq ne gt lt ge le".split()
)
_VIEWS = frozenset({"data", "T", "mT"})
_WEIGHING = frozenset(
    "Linear Bilinear LayerNorm GroupNorm Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d BatchNorm1d "
    "BatchNorm2d BatchNorm3d".split()
)
"""Layers of ``torch.nn`` whose results have the type of their weights, or autocast's."""
_Place = tuple[ast.expr, Module]


class FloatTrace:
    """Answers for what ``producers``, forward passes, return."""

    def __init__(self, resolver: Resolver, producers: dict[ast.Call, Module]) -> None:
        self._resolver = resolver
        self._producers = producers
        self._active: set[ast.expr] = set()

    def is_float(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is certainly a floating-point tensor made by a producer, or by another call of its network."""
        if isinstance(node, ast.Name):
            return _is_backpropagated(node, module) or self._always(self.is_float, node, module)
        if isinstance(node, ast.Call) and (
            self._produces(node, module) or self._is_of_layer(node, module)
        ):
            return True
        returned = list(self._given_back(node, (), module))
        if returned:
            return self._are_all(self.is_float, node, returned)
        inner = self._float_source(node, module)
        return inner is not None and self.is_float(inner, module)

    def is_other(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is certainly not of half precision, autocast or not: a part of a batch, a weight, a comparison."""
        if self._gives_batches(node, module):
            return True
        match node:
            case ast.Name():
                return self._always(self.is_other, node, module)
            case ast.Compare():
                return True
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if not self._resolver.names(
                node.func, module
            ):
                same = method in _SAME_TYPE or self._only_moves(node, module)
                return method in _OTHER_TYPE or (same and self.is_other(value, module))
            case ast.Attribute(value=value, attr=attr) if attr in _VIEWS:
                return self.is_other(value, module)
            case ast.Attribute():
                made = self._resolver.maker_names(node, module)
                return made == frozenset({"torch.nn.Parameter"})
            case _:
                return False

    def _gives_batches(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is a DataLoader, or goes over one."""
        while isinstance(node, ast.Call) and node.args:
            names = self._resolver.names(node.func, module)
            if not names or not names <= WRAPPING_ITERATORS:
                break
            node = node.args[0]
        return self._resolver.maker_names(node, module) == frozenset({DATALOADER})

    def _only_moves(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` is ``x.to(device)``, with no type beside the device."""
        if len(call.args) > 1 or any(keyword.arg == "dtype" for keyword in call.keywords):
            return False
        return move_target(self._resolver, call, module) not in {None, DeviceKind.UNKNOWN}

    def _always(
        self, question: Callable[[ast.expr, Module], bool], name: ast.Name, module: Module
    ) -> bool:
        """Whether ``question`` is answered with yes for whatever the variable ``name`` may be."""
        return self._are_all(question, name, list(self._values(name, module)))

    def _are_all(
        self,
        question: Callable[[ast.expr, Module], bool],
        node: ast.expr,
        values: list[_Place | None],
    ) -> bool:
        """Whether ``question`` is answered with yes for all ``values`` that ``node`` may have."""
        if node in self._active:
            return True  # whatever else it may be decides
        self._active.add(node)
        found = bool(values) and all(value is not None and question(*value) for value in values)
        self._active.discard(node)
        return found

    def _given_back(self, node: ast.expr, path: Path, module: Module) -> Iterator[_Place | None]:
        """What the script's own functions return, or the part of it that ``path`` leads to, where ``node`` calls them."""
        if not isinstance(node, ast.Call) or (not path and self._produces(node, module)):
            return
        for function in self._resolver.callees(node, module):
            for returned in returned_by(function):
                part = written_part(returned, path)
                yield (part, function.module) if part is not None else None

    def _values(self, name: ast.Name, module: Module) -> Iterator[_Place | None]:
        """What the variable may be; None for what cannot be told."""
        for binding in bindings_of(module, name):
            match binding.source:
                case Assigned(value, path):
                    part = unpacked_element(value, path)
                    if part is value and path:
                        yield from list(self._given_back(value, path, module)) or [None]
                    else:
                        yield part, module
                case Iterated(iterable):
                    yield iterable, module
                case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function):
                    yield from self._passed(function, binding.name)
                case _:
                    yield None

    def _passed(self, function: FunctionNode, name: str) -> Iterator[_Place | None]:
        sites = self._resolver.call_sites(function)
        if not sites or is_handed_around(self._resolver, function):
            yield None
        for site in sites:
            passed = argument_for(function, name, site.call, site.bound)
            given = passed.given if passed is not None else None
            yield (given, site.module) if given is not None else None

    def _produces(self, call: ast.Call, module: Module) -> bool:
        if call in self._producers:
            return True
        return any(model in self._networks for model in self._models(call, module))

    def _is_of_layer(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` certainly runs a layer that multiplies by weights, or a sequence that ends in one."""
        layers = called_layers(self._resolver, call.func, module)
        return bool(layers) and all(
            library_layer(self._resolver, layer) in _WEIGHING for layer in layers
        )

    def _models(self, call: ast.Call, module: Module) -> set[ast.Call]:
        values = self._resolver.values(call.func, module)
        return {model.node for model in models_in(self._resolver, values)}

    @cached_property
    def _networks(self) -> set[ast.Call]:
        return {
            model
            for call, module in self._producers.items()
            for model in self._models(call, module)
        }

    def _float_source(self, node: ast.expr, module: Module) -> ast.expr | None:
        """What ``node`` has its floating-point type from."""
        match node:
            case ast.Call():
                return self._float_operand(node, module)
            case ast.Attribute(value, attr) if attr in _VIEWS:
                return value
            case ast.Subscript(value, index) if not isinstance(index, ast.Constant):
                return value
            case _:
                return None

    def _float_operand(self, call: ast.Call, module: Module) -> ast.expr | None:
        if not isinstance(call.func, ast.Attribute | ast.Name):
            return None
        names = self._resolver.names(call.func, module)
        if names:
            is_known = all(n.rpartition(".")[2] in _FLOAT_FUNCTIONS for n in names)
            return call.args[0] if is_known and call.args else None
        if isinstance(call.func, ast.Attribute) and call.func.attr in _FLOAT_METHODS:
            return call.func.value
        return None


def _is_backpropagated(name: ast.Name, module: Module) -> bool:
    """Whether ``loss.backward()`` follows with whatever the variable ``name`` may be here: a loss is a floating-point tensor."""
    bindings = set(bindings_of(module, name))
    if not all(
        isinstance(binding.source, Assigned) and not isinstance(binding.source.value, ast.Constant)
        for binding in bindings
    ):
        return False
    return any(
        isinstance(parent := module.parents[other], ast.Attribute)
        and parent.attr == "backward"
        and isinstance(call := module.parents[parent], ast.Call)
        and call.func is parent
        and set(bindings_of(module, other)) == bindings
        for other in module.names_of(name.id)
        if module.function(other) is module.function(name)
    )
