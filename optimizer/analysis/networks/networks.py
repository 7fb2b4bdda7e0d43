"""Which expressions are networks, and which code runs when one is called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from ..autograd.graph_names import GRAPH_FREE_ATTRIBUTES
from ..calls.signatures import call_argument
from ..program.classes import class_attribute
from ..program.parameters import positional_parameters
from ..program.syntax import FunctionNode, Module
from ..values.questions import Answers, Questions
from ..values.resolver import Resolver
from ..values.values import Attribute, Class, Element, External, Function, Instance, Made, Value
from .models import is_module_class, is_module_value, unwrap_copies

_REGISTERS_HOOK = frozenset(
    {
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_module_forward_hook",
        "register_module_forward_pre_hook",
    }
)

_OF_EVERY_MODULE = frozenset(
    "train eval to cuda cpu half float double bfloat16 type parameters named_parameters buffers named_buffers children "
    "named_children modules named_modules state_dict load_state_dict zero_grad requires_grad_ apply add_module "
    "register_module register_buffer register_parameter get_submodule get_parameter share_memory compile".split()
)
"""Methods of ``torch.nn.Module`` that run no layer. They hide a layer of that name, as ``self.parameters = nn.ParameterList()``
makes one: layers are attributes that a class does not have."""
MODULE_METHODS = _OF_EVERY_MODULE | set("no_sync append extend insert items keys values".split())
"""Those, and what its containers and wrappers have."""
_LOOKUPS = frozenset({"__getattr__", "get_submodule"})
_OF_LIGHTNING = frozenset(
    "current_epoch global_step global_rank local_rank hparams hparams_initial logger loggers on_gpu".split()
)
_NO_LAYERS = GRAPH_FREE_ATTRIBUTES | _OF_LIGHTNING | {"weight", "bias"}
_RUNNING_METHODS = frozenset(
    "forward generate predict encode decode sample translate transcribe inference forward_features "
    "extract_features get_image_features get_text_features encode_image encode_text".split()
)


class Networks:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._questions = Questions()
        self._lookups = Answers[ast.Call, bool](nothing=False, incomplete=None)

    def is_network(self, expression: ast.expr, module: Module) -> bool:
        """Whether ``expression`` may be a ``torch.nn.Module``: through wrappers, a layer of another, a part of a list."""
        return any(self.is_network_value(v) for v in self.unwrapped(expression, module))

    def is_network_value(self, value: Value) -> bool:
        """Whether a value may be a network; a parameter or a method of one is not."""
        if isinstance(value, Attribute) and value.name in _NO_LAYERS:
            return False
        if isinstance(value, (Element, Attribute)):
            return self.is_network_value(value.of)
        return is_module_value(self._resolver, value) or self._looked_up_in(value) is not None

    def _looked_up_in(self, value: Value) -> ast.expr | None:
        """The network in which ``getattr(network, name)`` looks up a layer by its name."""
        if not isinstance(value, Made) or not isinstance(value.maker, External):
            return None
        call, owner = value.call, None
        if value.maker.name == "builtins.getattr" and call.args:
            owner = call.args[0]
        elif isinstance(call.func, ast.Attribute) and call.func.attr in _LOOKUPS:
            owner = call.func.value
        if owner is None:
            return None
        found = owner  # `part = getattr(part, name)` leads back to itself
        is_layer = self._questions.ask(
            call, self._lookups, lambda: self.is_network(found, value.module)
        )
        return found if is_layer else None

    def is_call(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` runs a network or a layer: ``model(x)``, ``model.fc(x)``, ``library_model.generate(x)``."""
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in _OF_EVERY_MODULE | _REGISTERS_HOOK:
            return False
        if isinstance(func, ast.Attribute) and func.attr in MODULE_METHODS:
            # A method, unless a layer has its name: the keys of an attention.
            values = self.unwrapped(func, module)
            return any(self.is_network_value(v) and not isinstance(v, Attribute) for v in values)
        return self.is_network(func, module)

    def runs(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` certainly computes something with a network: its forward, or a method known to run it."""
        if not self.is_call(call, module):
            return False
        values = [v for v in self.unwrapped(call.func, module) if self.is_network_value(v)]
        if any(not isinstance(value, Attribute) for value in values):
            return True
        return isinstance(call.func, ast.Attribute) and call.func.attr in _RUNNING_METHODS

    def unwrapped(self, expression: ast.expr, module: Module) -> frozenset[Value]:
        """What ``expression`` may be, parallel and compiled wrappers and copies looked through."""
        return unwrap_copies(self._resolver, self._resolver.values(expression, module))

    def functions_called(self, call: ast.Call, module: Module) -> Iterator[Function]:
        """The first-party functions that ``call`` may run, callbacks it is given and ``forward`` methods included.

        A container or wrapper of layers may run the ``forward`` of any first-party network, and forward hooks.
        """
        yield from self._resolver.callees(call, module)
        for argument in [*call.args, *(k.value for k in call.keywords)]:
            if isinstance(argument, (ast.Name, ast.Attribute, ast.Lambda)):
                for value in self._resolver.values(argument, module):
                    if isinstance(value, Function):
                        yield value
        if not self.is_call(call, module):
            return
        called = [v for v in self.unwrapped(call.func, module) if self.is_network_value(v)]
        if called:
            yield from self.forward_hooks
        for value in called:
            if isinstance(value, Made) and isinstance(value.maker, Class):
                yield from self.forwards_of(value.maker)
            else:
                yield from (f for f in self.forwards if _may_be_called_so(f, call))
                yield from self._methods_looked_up(value)

    def _methods_looked_up(self, value: Value) -> Iterator[Function]:
        """The methods that ``getattr(self, name)`` may mean instead of a layer."""
        owner = self._looked_up_in(value)
        if owner is None or not isinstance(value, Made):
            return
        for found in self.unwrapped(owner, value.module):
            cls = found.cls if isinstance(found, Instance) else getattr(found, "maker", None)
            if isinstance(cls, Class):
                for method in cls.node.body:
                    if isinstance(method, ast.FunctionDef) and not method.name.startswith("__"):
                        yield Function(method, cls.module, bound=True)

    def forwards_of(self, cls: Class) -> list[Function]:
        """The ``forward`` that an instance of ``cls`` runs, its own or an inherited one."""
        found = class_attribute(self._resolver, cls, "forward")
        return [value for value in found if isinstance(value, Function)]

    def is_part_of_network(self, function: FunctionNode, module: Module) -> bool:
        """Whether ``function`` is a method of a network class."""
        owner = module.parents.get(function)
        return isinstance(owner, ast.ClassDef) and is_module_class(
            self._resolver, Class(owner, module)
        )

    @cached_property
    def forwards(self) -> tuple[Function, ...]:
        """The ``forward`` of every first-party network."""
        return tuple(
            Function(node, module, bound=True)
            for module in self._resolver.project.modules
            for node in module.nodes
            if isinstance(node, ast.FunctionDef)
            and node.name == "forward"
            and self.is_part_of_network(node, module)
        )

    @cached_property
    def forward_hooks(self) -> tuple[Function, ...]:
        """The first-party functions that layers run ahead of their forward pass or behind it, with what goes in and comes out."""
        return tuple(
            value
            for hook, module in self._registered
            for value in self._resolver.values(hook, module)
            if isinstance(value, Function)
        )

    @cached_property
    def untraced_hook(self) -> tuple[ast.expr, Module] | None:
        """A hook of that kind that is not known to be a function of the script's own, nor of a library."""
        for hook, module in self._registered:
            values = self._resolver.values(hook, module)
            if not values or not all(isinstance(value, Function | External) for value in values):
                return hook, module
        return None

    @cached_property
    def _registered(self) -> list[tuple[ast.expr, Module]]:
        """The forward hooks that layers are given."""
        return [
            (hook, module)
            for module in self._resolver.project.modules
            for call in module.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr in _REGISTERS_HOOK
            if (hook := call_argument(call, "hook", 0)) is not None
        ]


_MOST_PASSED_ON = 2
"""As many arguments a container or wrapper of layers gives its layers by itself: ``tgt`` and ``memory``."""


def _may_be_called_so(forward: Function, call: ast.Call) -> bool:
    """Whether a layer with ``forward`` can be run by a container called as ``call``: not a loss of three arguments in an ``nn.Sequential``."""
    given = [*call.args, *call.keywords]
    if any(isinstance(g, ast.Starred) or getattr(g, "arg", "") is None for g in given):
        return True
    positional = len(positional_parameters(forward.node)) - 1
    return positional - len(forward.node.args.defaults) <= max(len(given), _MOST_PASSED_ON)
