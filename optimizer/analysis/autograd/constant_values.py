"""Expressions that carry no gradients: batches, numbers, random draws, and what is computed from them alone."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ..calls.signatures import argument_for, call_argument
from ..loading.batches import BatchTrace, Place
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Binding, Iterated, Parameter, Path
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element
from ..values.values import External, Function, Literal, Option
from .grad_modes import suspended_around

_CUT = frozenset(
    "detach item tolist numpy argmax argmin argsort size dim numel eq ne gt lt ge le tensor from_numpy FloatTensor "
    "LongTensor".split()
)
"""Methods and functions whose result has no gradients, whatever they are given."""
_PLAIN = frozenset({"data", "shape", "device", "dtype", "ndim"})
_ADDING = frozenset({"append", "extend", "insert", "add", "update", "setdefault"})
_PACKAGES = frozenset({"torch", "numpy", "random", "math", "builtins", "itertools"})
_DEEPEST = 12


class ConstantValues:
    """Answers for one project. ``is_frozen`` tells the calls that run a network without parameters to train."""

    def __init__(
        self,
        resolver: Resolver,
        batches: BatchTrace,
        is_frozen: Callable[[ast.Call, Module], bool],
    ) -> None:
        self._resolver = resolver
        self._batches = batches
        self._is_frozen = is_frozen
        self._active: list[ast.AST] = []

    def is_constant(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` certainly has no gradients."""
        if node in self._active or len(self._active) > _DEEPEST:
            return False
        values = self._resolver.values(node, module)
        if values and all(isinstance(value, Literal | Option) for value in values):
            return True
        if not isinstance(node, ast.Name) and self._is_loaded(node, module):
            return True
        self._active.append(node)
        found = self._evaluate(node, module)
        self._active.pop()
        return found

    def _is_loaded(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is what a loader gave, with nothing computed from it."""
        parts = self._batches.parts(node, module)
        return bool(parts) and all(part and part.place is Place.LOADED for part in parts)

    def _evaluate(self, node: ast.expr, module: Module) -> bool:
        match node:
            case ast.Constant() | ast.Compare() | ast.JoinedStr():
                return True
            case ast.Call():
                return self._call(node, module)
            case ast.Name():
                return self._name(node, module)
            case ast.Attribute(value=value, attr=attribute):
                return attribute in _PLAIN or (
                    attribute in {"T", "mT"} and self.is_constant(value, module)
                )
            case ast.Subscript(value=value, slice=index):
                return self.is_constant(value, module) and self.is_constant(index, module)
            case ast.BinOp(left=left, right=right):
                return self.is_constant(left, module) and self.is_constant(right, module)
            case ast.UnaryOp(operand=operand):
                return self.is_constant(operand, module)
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_constant(body, module) and self.is_constant(orelse, module)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return all(self.is_constant(element, module) for element in elements)
            case ast.Slice(lower=lower, upper=upper, step=step):
                return all(b is None or self.is_constant(b, module) for b in (lower, upper, step))
            case _:
                return False

    def _call(self, call: ast.Call, module: Module) -> bool:
        function = call.func
        last = function.attr if isinstance(function, ast.Attribute) else ""
        if last in _CUT or (suspended_around(self._resolver, call, module)):
            return True
        if last.startswith("requires_grad") or call_argument(call, "requires_grad") is not None:
            return False
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if self._is_frozen(call, module):
            return all(self.is_constant(value, module) for value in given)
        if isinstance(function, ast.Attribute) and not self._is_library(function.value, module):
            given.append(function.value)
        functions = self._resolver.callees(call, module)
        if functions:
            return all(self._returns_constant(f, (), call, module) for f in functions)
        names = self._resolver.names(function, module)
        if not all(_keeps_constant(name) for name in names):
            return False
        is_method = not names and isinstance(function, ast.Attribute)
        return (is_method or bool(names)) and all(self._is_harmless(v, module) for v in given)

    def _is_library(self, node: ast.expr, module: Module) -> bool:
        values = self._resolver.values(node, module)
        return bool(values) and all(isinstance(value, External) for value in values)

    def _is_harmless(self, node: ast.expr, module: Module) -> bool:
        """Whether an argument carries no gradients: a constant, or an option such as a device or a size."""
        if self.is_constant(node, module):
            return True
        names = self._resolver.names(node, module)
        return bool(names) and all(name.startswith("torch.") for name in names)

    def _returns_constant(
        self, function: Function, path: Path, call: ast.Call, module: Module
    ) -> bool:
        """Whether the part that ``path`` leads to of what ``function`` returns has no gradients, whoever calls it."""
        node = function.node
        if isinstance(node, ast.Lambda) or node in self._active:
            return False
        returned = [n for n in walk(node) if isinstance(n, ast.Return | ast.Yield | ast.YieldFrom)]
        self._active.append(node)
        found = bool(returned) and all(
            isinstance(one, ast.Return)
            and one.value is not None
            and self.is_constant(unpacked_element(one.value, path), function.module)
            for one in returned
        )
        self._active.pop()
        return found

    def _name(self, name: ast.Name, module: Module) -> bool:
        bindings = bindings_of(module, name)
        if not self._is_loaded(name, module) and not (
            bindings and all(self._binding(binding, module) for binding in bindings)
        ):
            return False
        place = module.scope(name).lookup(name.id)
        return all(
            self._leaves_constant(use, module)
            for use in module.names_of(name.id)
            if module.scope(use).lookup(use.id) == place
        )

    def _leaves_constant(self, use: ast.Name, module: Module) -> bool:
        """Whether ``use`` writes nothing with gradients into the object that the name stands for."""
        user = module.parents[use]
        around = module.parents[user]
        if isinstance(user, ast.Subscript) and isinstance(user.ctx, ast.Store):
            return isinstance(around, ast.Assign) and self.is_constant(around.value, module)
        if not isinstance(user, ast.Attribute) or user.value is not use:
            return True
        if isinstance(user.ctx, ast.Store):
            return user.attr != "requires_grad"
        if not isinstance(around, ast.Call) or around.func is not user:
            return True
        if user.attr in _ADDING or (user.attr.endswith("_") and not user.attr.startswith("_")):
            given = [*around.args, *(keyword.value for keyword in around.keywords)]
            return user.attr != "requires_grad_" and all(
                self._is_harmless(value, module) for value in given
            )
        return True

    def _binding(self, binding: Binding, module: Module) -> bool:
        match binding.source:
            case Assigned(ast.Call() as value, path) if path:
                functions = self._resolver.callees(value, module)
                if functions and not self._is_frozen(value, module):
                    return all(self._returns_constant(f, path, value, module) for f in functions)
                return self.is_constant(value, module)
            case Assigned(value, path):
                return self.is_constant(unpacked_element(value, path), module)
            case Iterated(iterable):
                return self.is_constant(iterable, module)
            case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function, "plain"):
                return self._argument(function, binding.name)
            case _:
                return False

    def _argument(self, function: FunctionNode, name: str) -> bool:
        sites = self._resolver.call_sites(function)
        for site in sites:
            passed = argument_for(function, name, site.call, site.bound)
            if passed is None:
                return False
            if passed.given is not None:
                if not self.is_constant(passed.given, site.module):
                    return False
            elif passed.default is None or not isinstance(passed.default, ast.Constant):
                return False
        return bool(sites)


def _keeps_constant(name: str) -> bool:
    """Whether what ``name`` of a library makes has no gradients if what it is given has none."""
    if name.startswith("torch.nn.") and not name.startswith("torch.nn.functional."):
        return False
    return name.partition(".")[0] in _PACKAGES
