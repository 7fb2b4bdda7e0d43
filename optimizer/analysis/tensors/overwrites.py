"""Operations that may overwrite the result of an activation: ``x += y``, ``x.mul_(y)``, ``nn.Dropout(inplace=True)``.

An activation that keeps its input for the backward pass survives them; in-place it would keep its result, and does not.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from ..calls.reach import reached_nodes
from ..calls.signatures import argument_for, first_parameter
from ..facts import Fact
from ..networks.models import is_module_class
from ..networks.networks import Networks
from ..program.reaching import bindings_of, reaching_bindings
from ..program.scopes import Assigned, Binding, Iterated, Parameter
from ..program.syntax import Module
from ..program.trees import is_true, walk
from ..values.resolver import CallSite, Resolver
from ..values.values import Class
from .fresh_results import FreshResults

_OF_MODULES = frozenset({"requires_grad_", "share_memory_", "clip_grad_norm_"})
_SETTINGS = frozenset({"weight", "bias", "grad", "running_mean", "running_var"})


def overwritten_result(
    resolver: Resolver,
    fresh: FreshResults,
    is_proven: Callable[[ast.Call, Module], bool],
) -> Fact | None:
    """The first operation that may overwrite a result of an activation, as far as can be told.

    ``is_proven`` says of an activation with ``inplace=True`` that its input is no such result.
    """
    search = _Search(resolver, fresh)
    for module in resolver.project.modules:
        for node in module.nodes:
            if says_inplace(node):
                assert isinstance(node, ast.Call)
                if not is_proven(node, module):
                    return Fact(module, node)
            elif search.overwrites(node, module):
                return Fact(module, node)
    return None


def says_inplace(node: ast.AST) -> bool:
    """Whether ``node`` is a call that asks for in-place work: ``nn.ReLU(inplace=True)``, ``F.relu(x, True)``."""
    if not isinstance(node, ast.Call):
        return False
    for keyword in node.keywords:
        if keyword.arg == "inplace":
            return not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    says = any(is_true(a) for a in node.args)
    return says and any(part in name.lower() for part in ("lu", "dropout", "tanh"))


class _Search:
    def __init__(self, resolver: Resolver, fresh: FreshResults) -> None:
        self._resolver = resolver
        self._fresh = fresh
        self._networks = Networks(resolver)
        self._asked: list[ast.FunctionDef] = []

    def overwrites(self, node: ast.AST, module: Module) -> bool:
        match node:
            case ast.AugAssign(target=ast.Name() as target):
                return self._may_be_result(target, module)
            case ast.AugAssign(target=ast.Attribute(), value=value) if self._in_network(
                node, module
            ):
                return not isinstance(value, ast.Constant)  # not `self.steps += 1`
            case ast.keyword("out"):
                return True
            case ast.AugAssign(target=ast.Subscript(value)) if self._in_network(node, module):
                return not isinstance(value, ast.Attribute)
            case ast.Assign(targets=targets) if self._in_network(node, module):
                return any(
                    isinstance(t, ast.Subscript)
                    and isinstance(t.value, ast.Name)
                    and self._may_be_result(t.value, module)
                    for t in targets
                )
            case ast.Call(ast.Attribute(receiver, method)) if is_inplace_method(method):
                names = self._resolver.names(node.func, module)  # type: ignore[attr-defined]
                if any(name.startswith("torch.nn.init.") for name in names):
                    return False
                if any(name.startswith("torch.") for name in names):
                    return True  # F.leaky_relu_(x)
                return self._receiver_may_be_result(receiver, module)
            case ast.Call(ast.Name()) if any(
                name.startswith("torch.nn.functional.") and is_inplace_method(name)
                for name in self._resolver.names(node.func, module)  # type: ignore[attr-defined]
            ):
                return True
            case _:
                return False

    def _in_network(self, node: ast.AST, module: Module) -> bool:
        function, cls = module.function(node), module.enclosing_class(node)
        return (
            function is not None
            and function.name != "__init__"
            and cls is not None
            and is_module_class(self._resolver, Class(cls, module))
        )

    def _receiver_may_be_result(self, receiver: ast.expr, module: Module) -> bool:
        while isinstance(receiver, ast.Attribute | ast.Subscript):
            if isinstance(receiver, ast.Attribute) and receiver.attr in _SETTINGS:
                return False
            receiver = receiver.value
        if isinstance(receiver, ast.Name):
            return self._may_be_result(receiver, module)
        if isinstance(receiver, ast.Call):
            return self._runs_network(receiver, module)
        return False

    def _may_be_result(self, name: ast.Name, module: Module) -> bool:
        """Whether ``name`` may be what a network or a layer returned."""
        scope = module.scope(name)
        found = scope.lookup(name.id)
        if found is None:
            return False
        bindings = reaching_bindings(module, *found, scope, name)
        return any(self._binding_may_be_result(b, name, module) for b in bindings)

    def _binding_may_be_result(self, binding: Binding, use: ast.Name, module: Module) -> bool:
        source = binding.source
        if isinstance(source, Parameter):
            function = source.function
            return self._in_network(use, module) or (
                isinstance(function, ast.FunctionDef)
                and self._is_given_result(function, binding.name)
            )
        if isinstance(source, Iterated):
            return self._in_network(use, module) and not any(
                isinstance(n, ast.Attribute) and n.attr.endswith("parameters")
                for n in walk(source.iterable)
            )
        if not isinstance(source, Assigned):
            return False  # an augmented assignment: what it adds to is looked at by itself
        if isinstance(source.value, ast.Constant):
            return False
        if not source.path and self._fresh.objection(source.value, module) is None:
            return False
        return self._in_network(use, module) or any(
            isinstance(n, ast.Call) and self._runs_network(n, module) for n in walk(source.value)
        )

    def _is_given_result(self, function: ast.FunctionDef, name: str) -> bool:
        """Whether a call of ``function`` may hand over, for its parameter ``name``, what a layer returned."""
        if function in self._asked:
            return True  # it may hand on what it was given
        self._asked.append(function)
        found = any(
            self._passes_result(function, name, site)
            for site in self._resolver.call_sites(function)
        )
        self._asked.pop()
        return found

    def _passes_result(self, function: ast.FunctionDef, name: str, site: CallSite) -> bool:
        passed = argument_for(function, name, site.call, site.bound)
        if passed is None or (site.bound and name == first_parameter(function)):
            return True
        given, module = passed.given, site.module
        if isinstance(given, ast.Name):
            return (
                self._in_network(given, module)
                or self._may_be_result(given, module)
                or any(self._comes_of_network(b, module) for b in bindings_of(module, given))
            )
        return not isinstance(given, ast.Constant | None)

    def _comes_of_network(self, binding: Binding, module: Module) -> bool:
        """Whether what ``binding`` assigns runs a network, in whichever functions."""
        source = binding.source
        return isinstance(source, Assigned) and any(
            isinstance(reached.node, ast.Call) and self._runs_network(reached.node, reached.module)
            for reached in reached_nodes(self._resolver, [source.value], module)
        )

    def _runs_network(self, call: ast.Call, module: Module) -> bool:
        return self._networks.is_call(call, module)


def is_inplace_method(name: str) -> bool:
    """Whether a method or function of that name writes to its tensor: ``add_``."""
    return name.endswith("_") and not name.endswith("__") and name not in _OF_MODULES
