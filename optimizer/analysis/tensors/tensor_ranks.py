"""How many dimensions a tensor has, as far as the code that gives it its shape tells."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from ..attention.attention_scales import Scales
from ..calls.signatures import argument_for, call_argument
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Binding, Parameter, Path
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.unpacking import element_at
from ..values.values import Function
from .returned_values import returned_by

_Rank: TypeAlias = "int | None"

_KEEP = frozenset(
    "transpose contiguous clone detach float half bfloat16 double to type type_as cuda cpu masked_fill masked_fill_ mul mul_ "
    "div div_ add add_ softmax roll flip chunk split tensor_split relu tanh sigmoid exp".split()
)
"""Methods, and functions of torch, whose result, or each part of it, has as many dimensions as the tensor they are given."""
_KEEP_FUNCTIONS = frozenset(
    "torch.nn.functional.softmax torch.nn.functional.dropout torch.nn.functional.normalize torch.softmax "
    "torch.transpose torch.chunk torch.split torch.masked_fill torch.roll torch.flip".split()
)


class TensorRanks:
    """Answers for one project; None is a rank that cannot be told, or that is not always the same."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._scales = Scales(resolver)
        self._active: set[ast.AST] = set()

    def of(self, node: ast.expr, module: Module) -> int | None:
        """The number of dimensions of the tensor that ``node`` evaluates to."""
        if node in self._active:
            return None
        self._active.add(node)
        try:
            return self._evaluate(node, module)
        finally:
            self._active.discard(node)

    def _evaluate(self, node: ast.expr, module: Module) -> _Rank:
        match node:
            case ast.Name():
                return _agreed(self._binding(b, module) for b in bindings_of(module, node))
            case ast.Subscript(value, ast.Constant(int())):
                return _plus(self.of(value, module), -1)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
                return self._arithmetic(left, right, module)
            case ast.Call(ast.Attribute() as method):
                function = self._library_function(node, module)
                return function if function is not None else self._method(node, method, module)
            case ast.Call():
                return self._library_function(node, module) or self._returned(node, module)
            case _:
                return None

    def _arithmetic(self, left: ast.expr, right: ast.expr, module: Module) -> _Rank:
        if self._scales.is_number(right, module):
            return self.of(left, module)
        if self._scales.is_number(left, module):
            return self.of(right, module)
        ranks = (self.of(left, module), self.of(right, module))
        return None if None in ranks else max(rank for rank in ranks if rank is not None)

    def _library_function(self, call: ast.Call, module: Module) -> _Rank:
        names = self._resolver.names(call.func, module)
        if len(names) != 1 or not call.args:
            return None
        name = next(iter(names))
        if name in _KEEP_FUNCTIONS:
            return self.of(call.args[0], module)
        if name == "torch.einsum":
            return _pattern_rank(call.args[0], _letters)
        if name in {"einops.rearrange", "einops.repeat"} and len(call.args) > 1:
            return _pattern_rank(call.args[1], _groups)
        return None

    def _method(self, call: ast.Call, method: ast.Attribute, module: Module) -> _Rank:
        if self._resolver.names(method, module):
            return None
        match method.attr:
            case "view" | "reshape" | "permute":
                sizes = _written_out(call)
                return len(sizes) if sizes else self._returned(call, module)
            case "unsqueeze":
                return _plus(self.of(method.value, module), 1)
            case "unbind" | "select":
                return _plus(self.of(method.value, module), -1)
            case "unflatten":
                sizes = call_argument(call, "sizes", 1)
                added = len(sizes.elts) - 1 if isinstance(sizes, ast.Tuple | ast.List) else None
                return None if added is None else _plus(self.of(method.value, module), added)
            case name if name in _KEEP:
                return self.of(method.value, module)
            case _:
                return self._returned(call, module)

    def _returned(self, call: ast.Call, module: Module) -> _Rank:
        """What a function of the project returns."""
        functions = self._resolver.callees(call, module)
        return _agreed(rank for function in functions for rank in self._results(function))

    def _results(self, function: Function) -> Iterable[_Rank]:
        returned = returned_by(function)
        return [self.of(v, function.module) if v is not None else None for v in returned]

    # Variables

    def _binding(self, binding: Binding, module: Module) -> _Rank:
        match binding.source:
            case Assigned(value, path):
                return self._part(value, path, module)
            case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function, "plain"):
                sites = self._resolver.call_sites(function)
                passed = [
                    (argument_for(function, binding.name, site.call, site.bound), site.module)
                    for site in sites
                ]
                return _agreed(
                    self.of(given.given, owner) if given is not None and given.given else None
                    for given, owner in passed
                )
            case _:
                return None

    def _part(self, value: ast.expr, path: Path, module: Module) -> _Rank:
        if not path:
            return self.of(value, module)
        match value:
            case ast.Tuple(elements) | ast.List(elements):
                element = element_at(elements, path[0])
                return self._part(element, path[1:], module) if element is not None else None
            case ast.ListComp(element) | ast.GeneratorExp(element):
                return self._part(element, path[1:], module)
            case ast.Call(ast.Name("map"), [ast.Lambda(body=body), *_]):
                return self._part(body, path[1:], module)
            case ast.Call(ast.Attribute(attr="chunk" | "split" | "tensor_split" | "unbind")):
                return self.of(value, module)
            case _:
                return _plus(self.of(value, module), -len(path))


def _agreed(ranks: Iterable[_Rank]) -> _Rank:
    found = set(ranks)
    return found.pop() if len(found) == 1 else None


def _plus(rank: _Rank, change: int) -> _Rank:
    return None if rank is None else rank + change


def _written_out(call: ast.Call) -> list[ast.expr] | None:
    """The sizes or dimensions that ``x.view(2, 3)`` or ``x.view((2, 3))`` is given; None where they are not written out."""
    sizes = call.args
    if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
        sizes = sizes[0].elts
    elif len(sizes) == 1:
        return None  # it may be a shape
    return None if any(isinstance(size, ast.Starred) for size in sizes) else list(sizes)


def _pattern_rank(pattern: ast.expr, count: Callable[[str], _Rank]) -> _Rank:
    """What ``count`` says of the right side of a pattern that is written out."""
    match pattern:
        case ast.Constant(str() as text) if "..." not in text:
            return count(text.partition("->")[2])
        case _:
            return None


def _letters(result: str) -> _Rank:
    """``bhqk`` of ``torch.einsum`` has four."""
    return len(result.replace(" ", "")) or None


def _groups(result: str) -> _Rank:
    """``b n (h d)`` of einops has three."""
    grouped = re.sub(r"\([^()]*\)", "1", result)
    return len(grouped.split()) or None
