"""What in a piece of code, and in all code it may run, needs autograd or asks about it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from ..calls.reach import lexical_nodes
from ..facts import excerpt
from ..networks.networks import Networks
from ..program.syntax import FunctionNode, Module
from ..training.loops import steps_optimizer
from ..values.resolver import Resolver
from ..values.values import Attribute, External, Function, Made, Unknown, Value
from .graph_escapes import Escape
from .graph_names import (
    BACKWARD_METHODS,
    GRAPH_FREE_METHODS,
    MUTATING_METHODS,
    REPORTING_METHODS,
    TENSOR_METHODS,
    gives_no_graph,
    needs_graph,
    passes_graph_on,
)

_PLAIN_METHODS = GRAPH_FREE_METHODS | MUTATING_METHODS | REPORTING_METHODS | TENSOR_METHODS
_GRAPH_METHODS = {
    **dict.fromkeys(BACKWARD_METHODS, "runs a backward pass"),
    "register_hook": "hooks into a backward pass",
    "register_full_backward_hook": "hooks into a backward pass",
    "register_backward_hook": "hooks into a backward pass",
    "retain_grad": "keeps a gradient",
    "requires_grad_": "asks for gradients",
    "set_grad_enabled": "switches gradients on or off",
}
_TRAINING_METHODS = frozenset({"fit", "learn", "minimize", "train_step", "train_on_batch"})
_GRAPH_QUESTIONS = frozenset({"requires_grad", "grad_fn", "is_leaf"})


class GraphHazards:
    """Answers for one project; what was found in a function is remembered."""

    def __init__(self, resolver: Resolver, networks: Networks) -> None:
        self._resolver = resolver
        self._networks = networks
        self._own: dict[ast.AST, Escape | None] = {}
        self._called: dict[ast.AST, list[Function]] = {}

    def find_directly(self, roots: Iterable[ast.AST], module: Module) -> Escape | None:
        """The first place that needs autograd in ``roots`` themselves."""
        return self._lexical(roots, module)

    def find(self, roots: Iterable[ast.AST], module: Module) -> Escape | None:
        """The first place that needs autograd in code that ``roots`` run, None when there is none."""
        for function in self.functions_run(roots, module):
            node = function.node
            if node not in self._own:
                self._own[node] = self._lexical(_body(node), function.module)
            if self._own[node] is not None:
                return self._own[node]
        return None

    def functions_run(self, roots: Iterable[ast.AST], module: Module) -> Iterator[Function]:
        """Every first-party function that may run when ``roots`` do, ``forward`` methods included."""
        seen: set[ast.AST] = set()
        pending = self._called_in(roots, module)
        while pending:
            function = pending.pop()
            node = function.node
            if node not in seen:
                seen.add(node)
                yield function
                if node not in self._called:
                    self._called[node] = self._called_in(_body(node), function.module)
                pending += self._called[node]

    def _called_in(self, roots: Iterable[ast.AST], module: Module) -> list[Function]:
        return [
            function
            for node in lexical_nodes(roots)
            if isinstance(node, ast.Call)
            for function in self._find_functions_of(node, module)
        ]

    def _find_functions_of(self, call: ast.Call, module: Module) -> Iterator[Function]:
        yield from self._networks.functions_called(call, module)
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr not in _PLAIN_METHODS:
            values = self._resolver.values(func.value, module)
            if any(isinstance(value, Unknown) for value in values):
                yield from self._methods.get(func.attr, ())

    @cached_property
    def _methods(self) -> dict[str, list[Function]]:
        found: dict[str, list[Function]] = {}
        for module in self._resolver.project.modules:
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    for method in node.body:
                        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                            function = Function(method, module, bound=True)
                            found.setdefault(method.name, []).append(function)
        return found

    def _lexical(self, roots: Iterable[ast.AST], module: Module) -> Escape | None:
        for node in lexical_nodes(roots):
            why = None
            if isinstance(node, ast.Call):
                why = self._of_call(node, module)
            elif isinstance(node, ast.Attribute) and node.attr in _GRAPH_QUESTIONS:
                why = self._of_question(node, module)
            if why is not None:
                return Escape(module, node, why)
        return None

    def _of_question(self, node: ast.Attribute, module: Module) -> str | None:
        if isinstance(node.ctx, ast.Load):
            return f"asks for `{node.attr}`"
        statement = module.statement(node)
        off = isinstance(statement, ast.Assign) and (
            isinstance(statement.value, ast.Constant) and not statement.value.value
        )
        return None if off else "asks for gradients"

    def _of_call(self, call: ast.Call, module: Module) -> str | None:
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        values = self._resolver.values(func, module)
        if name in _GRAPH_METHODS and not _is_switched_off(call):
            return _GRAPH_METHODS[name]
        is_step = isinstance(func, ast.Attribute) and name == "step"
        if is_step and steps_optimizer(self._resolver, call, module):
            return "steps an optimizer"
        for value in values:
            why = self._of_callee(value, call, module)
            if why is not None:
                return why
        hook = self._networks.untraced_hook
        if hook is not None and self._networks.is_call(call, module):
            code = excerpt(hook[1], hook[0])
            return f"runs the forward hook `{code}`, which could not be traced"
        return None

    def _of_callee(self, callee: Value, call: ast.Call, module: Module) -> str | None:
        name = ast.unparse(call.func)
        match callee:
            case External(library) if needs_graph(library):
                return f"calls `{name}`"
            case External("builtins.exec" | "builtins.eval"):
                return f"calls `{name}`, which may do anything"
            case External(library) | Made(_, _, External(library)):
                return self._of_library(library, callee, call, module)
            case Attribute(Made(_, _, External(library)) as made, _):
                return self._of_library(library, made, call, module)
            case Unknown() if not isinstance(call.func, ast.Attribute):
                return f"calls `{name}`, which could not be traced"
            case Unknown() if isinstance(call.func, ast.Attribute):
                if call.func.attr in _TRAINING_METHODS or self._is_unknown_part(call.func, module):
                    return f"calls `{name}`, which could not be traced"
                return None
            case _:
                return None

    def _is_unknown_part(self, func: ast.Attribute, module: Module) -> bool:
        """Whether something of unknown kind is called that a first-party object holds."""
        return any(True for _ in self._resolver.classes(func.value, module))

    def _of_library(
        self, library: str, callee: Value, call: ast.Call, module: Module
    ) -> str | None:
        """A library that is not known may differentiate a network it is given (adversarial attacks, attributions)."""
        if gives_no_graph(library) or passes_graph_on(library) or library.startswith("<"):
            return None
        given = [(a, module) for a in _arguments(call)]
        if isinstance(callee, Made):
            if self._networks.is_network_value(callee):
                return None
            given += [(a, callee.module) for a in _arguments(callee.call)]
        if any(self._networks.is_network(argument, owner) for argument, owner in given):
            return f"hands a network to `{library}`, which may need gradients"
        return None


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(k.value for k in call.keywords)]


def _body(function: FunctionNode | ast.Lambda) -> list[ast.AST]:
    return list(function.body) if isinstance(function.body, list) else [function.body]


def _is_switched_off(call: ast.Call) -> bool:
    """``requires_grad_(False)``."""
    return any(isinstance(a, ast.Constant) and a.value is False for a in _arguments(call))
