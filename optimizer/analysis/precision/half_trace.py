"""Which values may have been computed, by a network, in half precision: following them back to where they were made."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..calls.signatures import argument_for
from ..networks.models import is_module_class
from ..networks.networks import Networks
from ..program.classes import family, kept_as
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Binding, Iterated, Parameter
from ..program.scopes import Path as Part
from ..program.syntax import FunctionNode, Module, last_identifier
from ..program.trees import walk
from ..training.loops import is_forward
from ..values.composition import call_arguments
from ..values.resolver import CallSite, Resolver
from ..values.unpacking import unpacked_element
from ..values.values import Class, Function
from .half_functions import gives_float32
from .half_products import may_run_outside

_EXACT_RESULTS = frozenset(
    "argmax argmin argsort item tolist float double long int bool byte size numel dim numpy nonzero eq ne gt lt ge le "
    "isnan isinf isfinite any all shape stride get_device index_select_ allclose equal count_nonzero "
    "len range isinstance".split()
)
"""Functions and methods whose result is no half-precision tensor, whatever they are given."""
_PAIRS = frozenset({"max", "min", "topk", "sort", "median", "mode", "kthvalue", "cummax"})
"""Those that return values and then their indices."""
_PLAIN_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim", "is_cuda", "indices"})
OWN_PACKAGES = frozenset({"torch", "torchvision", "torchaudio", "torchmetrics", "builtins", "tqdm"})


def runs_network(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` runs a network from outside, not as a part of another one."""
    return not _in_network(resolver, call, module) and is_forward(resolver, call, module)


def runs_part(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` runs a layer of a network from outside, one out of a list, too: ``model.blocks[0](x)``."""
    return not _in_network(resolver, call, module) and Networks(resolver).runs(call, module)


def _in_network(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    cls = module.enclosing_class(call)
    return cls is not None and is_module_class(resolver, Class(cls, module))


@dataclass(frozen=True, eq=False)
class _Frame:
    """A call that is being followed into ``function``."""

    function: FunctionNode | ast.Lambda
    call: ast.Call
    module: Module
    bound: bool


_DEEPEST = 8
"""As many calls within each other are told apart, and beyond"""
_MOST_SEEN = 10_000
"""as many values none are any more."""


class _Trace(ABC):
    """Follows values back to the calls that produced them."""

    def __init__(
        self,
        resolver: Resolver,
        producers: frozenset[ast.Call],
        covered: frozenset[ast.AST] | None,
    ) -> None:
        self._resolver = resolver
        self._producers = producers
        self._covered = covered
        self._frames: tuple[_Frame, ...] = ()
        self._outside: FunctionNode | None = None

    @abstractmethod
    def _half(self, node: ast.expr | None, module: Module) -> bool:
        """Whether ``node`` may be half, unless that is being asked already."""

    @abstractmethod
    def _returns_half(self, function: Function, path: Part, call: ast.Call, module: Module) -> bool:
        """Whether the part that ``path`` leads to of what ``function`` returns to ``call`` may be half."""

    def _made_of_half(self, node: ast.expr, module: Module) -> bool:
        match node:
            case ast.Call():
                return self._call(node, module)
            case ast.Name():
                return self._name(node, module)
            case ast.Attribute():
                return self._attribute(node, module)
            case ast.Subscript(value=value, slice=ast.Constant(value=key)):
                return not _is_pair(value, (key,)) and self._half(value, module)
            case _:
                return self._any(_parts(node), module)

    def _any(self, nodes: list[ast.expr], module: Module) -> bool:
        return any(self._half(node, module) for node in nodes)

    def _call(self, call: ast.Call, module: Module) -> bool:
        if call in self._producers:
            return not self._runs_outside(call, module)
        function = call.func
        last = last_identifier(function)
        if last in _EXACT_RESULTS:
            return False
        if self._covered is not None and gives_float32(self._resolver, call, module, self._covered):
            return False
        if last == "type_as" and call.args:
            return self._half(call.args[0], module)
        if runs_network(self._resolver, call, module) or self._runs_part_outside(call, module):
            return False  # not under autocast
        given = [_typed_as(argument) for argument in call_arguments(call)]
        names = self._resolver.names(function, module)
        if names:
            ours = all(n.partition(".")[0] in OWN_PACKAGES for n in names)
            return ours and self._any(given, module)
        functions = self._resolver.callees(call, module)
        if functions:
            return any(self._returns_half(f, (), call, module) for f in functions)
        receiver = [function.value] if isinstance(function, ast.Attribute) else []
        return self._any([*receiver, *given], module)

    def _runs_part_outside(self, call: ast.Call, module: Module) -> bool:
        covered = self._covered
        return (
            covered is not None and call not in covered and runs_part(self._resolver, call, module)
        )

    def _runs_outside(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` is a part of the run outside of autocast whose values are followed."""
        if self._outside is None or module.function(call) is not self._outside:
            return False
        return may_run_outside(self._resolver, call, module, self._covered or frozenset())

    def _name(self, name: ast.Name, module: Module) -> bool:
        bindings = bindings_of(module, name)
        is_local = all(module.function(b.node) is module.function(name) for b in bindings)
        with self._outside_in(self._outside if is_local else None):
            return any(self._binding(binding, module) for binding in bindings) or any(
                self._half(added, module) for added in _added_to(name, module)
            )

    def _binding(self, binding: Binding, module: Module) -> bool:
        match binding.source:
            case Assigned(value, path):
                return not _is_pair(value, path) and self._assigned(value, path, module)
            case Iterated(iterable):
                return self._half(iterable, module)
            case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function):
                return self._argument(function, binding.name)
            case _:
                return False

    def _assigned(self, value: ast.expr, path: Part, module: Module) -> bool:
        value = unpacked_element(value, path)
        if isinstance(value, ast.Call) and path and value not in self._producers:
            functions = self._resolver.callees(value, module)
            if functions:
                return any(self._returns_half(f, path, value, module) for f in functions)
        return self._half(value, module)

    def _argument(self, function: FunctionNode, name: str) -> bool:
        """Whether a parameter may be half: in a call that is being followed only from what that call passes."""
        for depth, frame in enumerate(self._frames):
            if frame.function is function:
                passed = argument_for(function, name, frame.call, frame.bound)
                inner, self._frames = self._frames, self._frames[:depth]
                found = passed is not None and self._half(passed.given, frame.module)
                self._frames = inner
                return found
        return any(
            self._passes_half(function, name, site) for site in self._resolver.call_sites(function)
        )

    def _passes_half(self, function: FunctionNode, name: str, site: CallSite) -> bool:
        is_outside = self._outside is function
        if is_outside and not may_run_outside(
            self._resolver, site.call, site.module, self._covered or frozenset()
        ):
            return False
        passed = argument_for(function, name, site.call, site.bound)
        with self._outside_in(site.module.function(site.call) if is_outside else None):
            return passed is not None and self._half(passed.given, site.module)

    @contextmanager
    def _outside_in(self, function: FunctionNode | None) -> Generator[None]:
        """Values that are followed on are those of a run of ``function`` outside of autocast, or of any code."""
        inner, self._outside = self._outside, function
        yield
        self._outside = inner

    def _attribute(self, node: ast.Attribute, module: Module) -> bool:
        if node.attr in _PLAIN_ATTRIBUTES:
            return False
        cls = module.enclosing_class(node)
        if cls is not None and isinstance(node.value, ast.Name):
            kept = kept_as(self._resolver, cls, module, node.attr)
            added = _added_to_attribute(self._resolver, cls, module, node.attr)
            with self._outside_in(None):  # It may have been kept by any call.
                if any(self._half(value, where) for value, _, where in kept):
                    return True
                if any(self._half(value, where) for value, where in added):
                    return True
        return self._half(node.value, module)


class _InAnyCall(_Trace):
    """Follows values without telling the calls of a function apart.

    What is not half so is not half in any one call: there are many ways through the calls of a project, but few nodes.
    """

    def __init__(
        self,
        resolver: Resolver,
        producers: frozenset[ast.Call],
        covered: frozenset[ast.AST] | None,
    ) -> None:
        super().__init__(resolver, producers, covered)
        self._known: dict[ast.expr, bool] = {}
        self._seen: set[ast.expr] = set()

    def may_be_half(self, node: ast.expr, module: Module) -> bool:
        if node not in self._known:
            self._seen = set()
            if not self._half(node, module):
                self._known.update(dict.fromkeys(self._seen, False))
        return self._known[node]

    def _half(self, node: ast.expr | None, module: Module) -> bool:
        if node is None or node in self._seen:
            return False
        if node not in self._known:
            self._seen.add(node)
            if not self._made_of_half(node, module):
                return False  # as far as seen: what is being asked already may be half yet
            self._known[node] = True
        return self._known[node]

    def returns_half(self, function: Function, path: Part) -> bool:
        returned = _returned(function.node, path)
        return any(self.may_be_half(value, function.module) for value in returned)

    def _returns_half(self, function: Function, path: Part, call: ast.Call, module: Module) -> bool:
        return self._any(_returned(function.node, path), function.module)


class HalfTrace(_Trace):
    """Follows values back, and in a call of a function only to what that call passes.

    Without ``covered``, the nodes under autocast, also through functions that make float32 of what was half before.
    """

    def __init__(
        self,
        resolver: Resolver,
        producers: frozenset[ast.Call],
        covered: frozenset[ast.AST] | None = None,
    ) -> None:
        super().__init__(resolver, producers, covered)
        self._in_any_call = _InAnyCall(resolver, producers, covered)
        self._seen: set[tuple[ast.AST, tuple[ast.Call, ...], FunctionNode | None]] = set()

    def may_be_half(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` may hold, or be computed from, what a producer returned."""
        return self._search(node, module, None)

    def may_be_half_outside(self, node: ast.expr, module: Module) -> bool:
        """The same where ``node`` does not run under autocast, so not in calls that do."""
        return self._search(node, module, module.function(node))

    def _search(self, node: ast.expr, module: Module, outside: FunctionNode | None) -> bool:
        self._seen, self._frames, self._outside = set(), (), outside
        return self._half(node, module)

    def _half(self, node: ast.expr | None, module: Module) -> bool:
        if node is None:
            return False
        key = (node, tuple(frame.call for frame in self._frames), self._outside)
        if key in self._seen:
            return False
        self._seen.add(key)
        return self._in_any_call.may_be_half(node, module) and self._made_of_half(node, module)

    def _returns_half(self, function: Function, path: Part, call: ast.Call, module: Module) -> bool:
        node = function.node
        if any(frame.function is node for frame in self._frames):
            return False
        if len(self._frames) >= _DEEPEST or len(self._seen) >= _MOST_SEEN:
            return self._in_any_call.returns_half(function, path)
        outer = self._frames
        self._frames = (*outer, _Frame(node, call, module, function.bound))
        found = self._any(_returned(node, path), function.module)
        self._frames = outer
        return found


def _typed_as(argument: ast.expr) -> ast.expr:
    """``x`` in place of ``x.dtype``: what is made in its type, or taken to that, is half where ``x`` is."""
    if isinstance(argument, ast.Attribute) and argument.attr == "dtype":
        return argument.value
    return argument


def _returned(function: FunctionNode | ast.Lambda, path: Part) -> list[ast.expr]:
    """The part that ``path`` leads to of all that ``function`` may return."""
    if isinstance(function, ast.Lambda):
        returned = [function.body]
    else:
        exits = [n for n in walk(function) if isinstance(n, (ast.Return, ast.Yield))]
        returned = [found.value for found in exits if found.value is not None]
    return [unpacked_element(value, path) for value in returned]


def _parts(node: ast.expr) -> list[ast.expr]:
    """The expressions whose values are part of that of ``node``."""
    match node:
        case ast.BinOp(left, _, right):
            return [left, right]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case ast.BoolOp(values=values) | ast.Dict(values=values):
            return values
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            return elements
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.SetComp(elt=element):
            return [element]
        case ast.Subscript() | ast.Starred() | ast.NamedExpr() | ast.Await():
            return [node.value]
        case _:
            return []


def _is_pair(value: ast.expr, path: Part | tuple[object, ...]) -> bool:
    """Whether ``path`` leads to the indices among what ``value`` (``torch.max(x, 1)``) returns."""
    if not (isinstance(value, ast.Call) and path and path[0] == 1):
        return False
    return last_identifier(value.func) in _PAIRS


def _added_to(name: ast.Name, module: Module) -> Iterator[ast.expr]:
    """What is appended to the list ``name`` stands for, or added in place to its value.

    Not what was appended to another list of that name: ``losses = [loss.item() for loss in losses]`` makes a new one.
    """
    scope = module.scope(name)
    found = scope.lookup(name.id)
    bindings = set(bindings_of(module, name))
    for base in module.names_of(name.id):
        added = _addition(base, module)
        if added is None:
            continue
        there = module.scope(base).lookup(base.id)
        if found is None or there is None or there[0] is not found[0]:
            continue
        is_other = isinstance(base.ctx, ast.Load) and bindings.isdisjoint(bindings_of(module, base))
        if not is_other:
            yield added


def _added_to_attribute(
    resolver: Resolver, cls: ast.ClassDef, module: Module, name: str
) -> Iterator[tuple[ast.expr, Module]]:
    """What methods add to ``self.name`` of an object that runs code of ``cls``: :func:`_added_to`, with its module."""
    for member in family(resolver, cls, module):
        for base in member.module.attributes_of(name):
            if member.module.enclosing_class(base) is member.node and isinstance(
                base.value, ast.Name
            ):
                added = _addition(base, member.module)
                if added is not None:
                    yield added, member.module


def _addition(base: ast.expr, module: Module) -> ast.expr | None:
    """What is appended to the list ``base`` stands for, or to one in it, or added in place to its value."""
    user = module.parents[base]
    if isinstance(user, ast.AugAssign) and user.target is base:
        return user.value
    while isinstance(user, ast.Subscript) and user.value is base:
        base, user = user, module.parents[user]
    call = module.parents[user]
    if (
        isinstance(user, ast.Attribute)
        and user.attr in {"append", "extend", "add"}
        and isinstance(call, ast.Call)
        and call.func is user
        and call.args
    ):
        return call.args[0]
    return None
