"""Where a script already says whether gradients are recorded."""

from __future__ import annotations

import ast

from ..calls.reach import lexical_nodes
from ..frameworks.lightning import is_lightning_class
from ..program.scopes import Parameter
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Class, Function
from .graph_names import SETS_GRAD_MODE

_SUSPENDS = frozenset({"torch.no_grad", "torch.inference_mode"})
_EVALUATION_HOOKS = ("validation_", "test_", "predict_", "on_validation", "on_test", "on_predict")


def suspended_around(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` stands under ``torch.no_grad()`` or ``torch.inference_mode()``, in a block or a decorated function."""
    for ancestor in module.ancestors(node):
        modes: list[ast.expr] = []
        if isinstance(ancestor, ast.With):
            modes = [item.context_expr for item in ancestor.items]
        elif isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef):
            modes = ancestor.decorator_list
        for mode in modes:
            function = mode.func if isinstance(mode, ast.Call) else mode
            names = resolver.names(function, module)
            if names & SETS_GRAD_MODE:
                is_plain = not (isinstance(mode, ast.Call) and (mode.args or mode.keywords))
                return is_plain and names <= _SUSPENDS
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
    return False


class GradModes:
    """Answers for one project; answers about functions are remembered."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._functions: dict[FunctionNode, bool] = {}
        self._active: set[FunctionNode] = set()

    def decided(self, node: ast.AST, module: Module) -> bool:
        """Whether the code around ``node``, or around every call of its function, chose a grad mode for it."""
        child = node
        for ancestor in module.ancestors(node):
            items = ancestor.items if isinstance(ancestor, (ast.With, ast.AsyncWith)) else []
            if any(child is not i and self._sets_mode(i.context_expr, module) for i in items):
                return True
            if isinstance(child, ast.stmt) and self._set_before(child, module):
                return True
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return self.decided_for(ancestor, module)
            child = ancestor
        return False

    def decided_for(self, function: FunctionNode, module: Module) -> bool:
        """Whether ``function`` always runs under a grad mode that was chosen for it."""
        if function in self._functions:
            return self._functions[function]
        if function in self._active:
            return True
        self._active.add(function)
        sites = self._resolver.call_sites(function)
        found = (
            any(
                self._sets_mode(decorator, module) or self._wraps_in_mode(decorator, module)
                for decorator in function.decorator_list
            )
            or self._is_evaluation_hook(function, module)
            or (bool(sites) and all(self.decided(s.call, s.module) for s in sites))
            or self._is_callback_of_decided(function, module)
        )
        self._active.discard(function)
        if not self._active:
            self._functions[function] = found
        return found

    def _sets_mode(self, expression: ast.expr, module: Module) -> bool:
        """Whether a context manager or decorator switches recording on or off, also from inside a helper."""
        for node in walk(expression):
            if isinstance(node, ast.Name | ast.Attribute):
                if self._resolver.names(node, module) & SETS_GRAD_MODE:
                    return True
            elif isinstance(node, ast.Call):
                for callee in self._resolver.callees(node, module):
                    body = callee.node.body if isinstance(callee.node.body, list) else []
                    for inner in lexical_nodes(body):
                        if isinstance(inner, ast.Call) and (
                            self._resolver.names(inner.func, callee.module) & SETS_GRAD_MODE
                        ):
                            return True
        return False

    def _wraps_in_mode(self, decorator: ast.expr, module: Module) -> bool:
        """Whether a decorator of the script's own calls what it decorates under a grad mode: ``with torch.no_grad(): return f(x)``."""
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        for value in self._resolver.values(function, module):
            if isinstance(value, Function):
                calls = [
                    node
                    for node in walk(value.node)
                    if isinstance(node, ast.Call) and _calls_a_parameter(node, value.module)
                ]
                if calls and all(self.decided(call, value.module) for call in calls):
                    return True
        return False

    def _is_callback_of_decided(self, function: FunctionNode, module: Module) -> bool:
        """Whether ``function`` is made under a grad mode and only called, or handed to calls, under one, as an integrator's right-hand side is."""
        owner = module.function(function)
        if owner is None or isinstance(module.parents.get(function), ast.ClassDef):
            return False
        mentions = [
            node
            for node in walk(owner)
            if isinstance(node, ast.Name)
            and node.id == function.name
            and isinstance(node.ctx, ast.Load)
        ]
        return bool(mentions) and all(
            isinstance(module.parents.get(mention), (ast.Call, ast.keyword))
            and self.decided(mention, module)
            for mention in mentions
        )

    def _set_before(self, statement: ast.stmt, module: Module) -> bool:
        """``torch.set_grad_enabled(..)`` as a statement of its own, above in the same block."""
        if "set_grad_enabled" not in module.source.text:
            return False
        block = module.block(statement)
        return any(
            isinstance(earlier, ast.Expr)
            and isinstance(earlier.value, ast.Call)
            and bool(self._resolver.names(earlier.value.func, module) & SETS_GRAD_MODE)
            for earlier in block[: block.index(statement)]
        )

    def _is_evaluation_hook(self, function: FunctionNode, module: Module) -> bool:
        """Lightning runs validation, test and prediction hooks without gradients."""
        owner = module.parents.get(function)
        if not (isinstance(owner, ast.ClassDef) and function.name.startswith(_EVALUATION_HOOKS)):
            return False
        return is_lightning_class(self._resolver, Class(owner, module))


def _calls_a_parameter(call: ast.Call, module: Module) -> bool:
    if not isinstance(call.func, ast.Name):
        return False
    found = module.scope(call.func).lookup(call.func.id)
    return found is not None and all(isinstance(b.source, Parameter) for b in found[1])
