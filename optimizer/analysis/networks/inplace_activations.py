"""Activations that could overwrite their input, and what keeps the others from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..calls.signatures import call_argument
from ..facts import Fact
from ..program.classes import first_party_bases
from ..program.syntax import Module
from ..tensors.fresh_results import FreshResults
from ..tensors.overwrites import overwritten_result
from ..values.composition import composed_of
from ..values.resolver import Resolver
from ..values.values import Attribute, Class, Instance, Made, Unknown
from .layer_access import compiling_call, look_inside, shown_whole
from .layer_sequences import LayerSequences, Untold
from .models import is_module_class
from .networks import Networks

_LAYERS = {"torch.nn.ReLU": 0, "torch.nn.ReLU6": 0, "torch.nn.LeakyReLU": 1, "torch.nn.Hardtanh": 2}
"""Activations whose backward pass gives the same numbers from their result as from their input, and the position of ``inplace``.

ELU and its relatives round differently; SiLU, GELU and dropout gain nothing from overwriting.
"""
_FUNCTIONS = {
    "torch.nn.functional.relu": 1,
    "torch.nn.functional.relu6": 1,
    "torch.nn.functional.leaky_relu": 2,
    "torch.nn.functional.hardtanh": 3,
}
_KEEP_THEIR_RESULT = frozenset({"torch.nn.ReLU", "torch.nn.functional.relu"})
"""Whatever overwrites the result of these fails already."""
_LEAKY = {"torch.nn.LeakyReLU": 0, "torch.nn.functional.leaky_relu": 1}


@dataclass(frozen=True, eq=False)
class InplaceActivation(Fact):
    """The call that makes or runs an activation; ``obstacle`` says why it must not overwrite its input, None when it may."""

    node: ast.Call
    position: int
    obstacle: str | None


@dataclass(frozen=True, eq=False)
class InplaceActivations:
    """The activations of a script, or (then there are none) the one place that rules all of them out and why."""

    found: tuple[InplaceActivation, ...]
    ruled_out: tuple[Fact, str] | None = None


def find_inplace_activations(resolver: Resolver) -> InplaceActivations:
    """The activations in networks of the project that do not say ``inplace``."""
    finder = _Finder(resolver)
    calls = list(finder.calls())
    if not calls:
        return InplaceActivations(())
    compiled = compiling_call(resolver)
    if compiled is not None:
        return InplaceActivations((), (compiled, "the compiler reuses memory by itself"))
    inside = look_inside(resolver)
    if inside is not None:
        return InplaceActivations(
            (), (inside, f"`{inside.excerpt}` may look at results between layers")
        )
    return InplaceActivations(tuple(finder.fact(*call) for call in calls))


class _Finder:
    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._fresh = FreshResults(resolver)
        self._sequences = LayerSequences(resolver)
        self._networks = Networks(resolver)

    def calls(self) -> Iterator[tuple[ast.Call, Module, str]]:
        for module in self._resolver.project.modules:
            for call in module.calls:
                names = self._resolver.names(call.func, module)
                if len(names) == 1 and (name := next(iter(names))) in {**_LAYERS, **_FUNCTIONS}:
                    position = {**_LAYERS, **_FUNCTIONS}[name]
                    opaque = any(k.arg is None for k in call.keywords) or any(
                        isinstance(a, ast.Starred) for a in call.args
                    )
                    if not opaque and call_argument(call, "inplace", position) is None:
                        yield call, module, name

    @cached_property
    def _overwritten(self) -> Fact | None:
        return overwritten_result(self._resolver, self._fresh, self._is_proven)

    def _is_proven(self, call: ast.Call, module: Module) -> bool:
        """Whether an activation that says ``inplace=True`` has an input that is no activation's result."""
        names = self._resolver.names(call.func, module)
        if len(names) != 1 or (name := next(iter(names))) not in {**_LAYERS, **_FUNCTIONS}:
            return False
        return self._obstacle(call, module, name) is None

    def fact(self, call: ast.Call, module: Module, name: str) -> InplaceActivation:
        obstacle = self._obstacle(call, module, name)
        if obstacle is None and name in _LAYERS and self._shown is not None:
            obstacle = f"`{self._shown.excerpt}` shows how the layers of a network are set"
        if obstacle is None and name not in _KEEP_THEIR_RESULT and self._overwritten is not None:
            obstacle = (
                f"`{self._overwritten.excerpt}` may overwrite its result, which it would keep"
            )
        position = {**_LAYERS, **_FUNCTIONS}[name]
        return InplaceActivation(module, call, position, obstacle)

    def _obstacle(self, call: ast.Call, module: Module, name: str) -> str | None:
        slope = call_argument(call, "negative_slope", _LEAKY[name]) if name in _LEAKY else None
        if slope is not None and not self._is_positive(slope, module):
            return "its slope may be negative"
        if len(self._resolver.values(call.func, module)) > 1:
            return f"`{module.code(call.func)}` may be something else too"
        if name in _FUNCTIONS:
            return self._function_obstacle(call, module)
        return self._layer_obstacle(call, module)

    def _is_positive(self, slope: ast.expr, module: Module) -> bool:
        try:
            value = self._resolver.literal(slope, module)
        except LookupError:
            return False
        return isinstance(value, int | float) and value > 0

    def _function_obstacle(self, call: ast.Call, module: Module) -> str | None:
        given = call_argument(call, "input", 0)
        if given is None:
            return "its input cannot be told"
        return self._fresh.objection(given, module)

    # Layers

    def _layer_obstacle(self, call: ast.Call, module: Module) -> str | None:
        """Looks at every place where the layer that ``call`` makes may run."""
        parent = module.parents[call]
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            return self._assigned_obstacle(call, parent.targets[0], module)
        return self._place_obstacle(call, module)

    def _place_obstacle(self, layer: ast.expr, module: Module) -> str | None:
        """``layer`` stands among the layers of a sequence: what may run before it there."""
        try:
            before = self._sequences.before(layer, module)
        except Untold as why:
            return str(why)
        for previous, owner in before:
            objection = self._fresh.layer_objection(previous, owner)
            if objection is not None:
                return objection
        return None

    def _assigned_obstacle(self, call: ast.Call, target: ast.expr, module: Module) -> str | None:
        if isinstance(target, ast.Attribute):
            name, cls = target.attr, module.enclosing_class(call)
            is_own = cls is not None and is_module_class(self._resolver, Class(cls, module))
            if not is_own or not isinstance(target.value, ast.Name):
                return "where it runs cannot be told"
        elif isinstance(target, ast.Name):
            name = target.id
        else:
            return "where it runs cannot be told"
        places = list(self._uses(call, name, isinstance(target, ast.Attribute)))
        if not places:
            return "it is not seen to run"
        for use, owner in places:
            parent = owner.parents[use]
            if isinstance(parent, ast.Call) and parent.func is use:
                obstacle = (
                    self._function_obstacle(parent, owner)
                    if parent.args
                    else "its input cannot be told"
                )
            else:
                obstacle = self._place_obstacle(use, owner)
            if obstacle is not None:
                return obstacle
        return None

    def _uses(
        self, call: ast.Call, name: str, is_attribute: bool
    ) -> Iterator[tuple[ast.expr, Module]]:
        """Where the variable or attribute ``name`` may be the layer that ``call`` makes."""
        for module in self._resolver.project.modules:
            for node in module.nodes:
                if is_attribute:
                    matches = isinstance(node, ast.Attribute) and node.attr == name
                else:
                    matches = isinstance(node, ast.Name) and node.id == name
                    matches = matches or (isinstance(node, ast.Attribute) and node.attr == name)
                if not matches or not isinstance(getattr(node, "ctx", None), ast.Load):
                    continue
                assert isinstance(node, (ast.Name, ast.Attribute))
                if self._may_be(node, call, module):
                    yield node, module

    def _may_be(self, node: ast.expr, call: ast.Call, module: Module) -> bool:
        """Whether ``node`` may be the layer that ``call`` makes; also where a derived class replaces it."""
        for value in self._resolver.values(node, module):
            if isinstance(value, Unknown | Attribute) or (
                isinstance(value, Made) and value.call is call
            ):
                return True
        owners = (
            self._resolver.values(node.value, module) if isinstance(node, ast.Attribute) else ()
        )
        return any(isinstance(o, Instance) and o.cls in self._bases(call) for o in owners)

    def _bases(self, call: ast.Call) -> tuple[Class, ...]:
        """The classes of the project that the one in which ``call`` stands is derived from."""
        for module in self._resolver.project.modules:
            cls = module.enclosing_class(call) if call in module.parents else None
            if cls is not None:
                return tuple(first_party_bases(self._resolver, Class(cls, module)))
        return ()

    # Networks that are printed or saved with all their settings

    @cached_property
    def _shown(self) -> Fact | None:
        """A place where a network is printed or saved as a whole."""
        for shown, fact in shown_whole(self._resolver):
            values = self._resolver.values(shown, fact.module)
            if any(self._networks.is_network_value(v) for v in composed_of(self._resolver, values)):
                return fact
        return None
