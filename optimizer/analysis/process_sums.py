"""What a loop over batches adds up, and what becomes of the sums when every process has a share of the batches' samples."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from .batch_targets import AnyTargets
from .facts import Fact, Loop
from .forward_losses import returns_mean
from .loops import is_forward
from .mean_losses import not_a_mean
from .reach import lexical_nodes
from .resolver import Resolver
from .scopes import Assigned, Binding, Iterated
from .signatures import call_argument
from .syntax import Module
from .trees import is_name, walk
from .values import Made

_ZEROS = frozenset({"torch.zeros", "torch.tensor", "torch.zeros_like", "torch.FloatTensor"})
_SAME_NUMBER = frozenset(
    "item detach cpu cuda to float double int long half data numpy tolist clone squeeze".split()
)
_CONVERSIONS = frozenset({"builtins.float", "builtins.int"})


class Share(Enum):
    """What a number of one process is to that of all of them together."""

    SAME = "same"
    """Every process has it: a constant, the number of steps."""
    SUM = "sum"
    """The processes' numbers add up to it: a count of samples."""
    MEAN = "mean"
    """It is the mean of the processes' numbers: a mean over a batch of which each has an equal part."""


@dataclass(frozen=True, eq=False)
class Accumulator(Fact):
    """A variable that is zero ahead of ``loop`` and added to in it; ``node`` is its first addition.

    ``share`` is what the variable of one process is to that of all, None where that is not understood. ``looked_at``:
    the loop also reads it; ``read_later``: other code does.
    """

    node: ast.AugAssign
    loop: Loop
    name: str
    share: Share | None
    looked_at: bool
    read_later: bool


def find_accumulators(resolver: Resolver, loop: Loop) -> tuple[Accumulator, ...]:
    """The variables that ``loop`` adds up, in the order of their first additions."""
    found: dict[str, list[ast.AugAssign]] = {}
    for node in walk(loop.node):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            base = node.target.value if isinstance(node.target, ast.Subscript) else node.target
            if isinstance(base, ast.Name):
                found.setdefault(base.id, []).append(node)
    return tuple(
        accumulator
        for name, additions in found.items()
        if (accumulator := _accumulator(resolver, loop, name, additions)) is not None
    )


def _accumulator(
    resolver: Resolver, loop: Loop, name: str, additions: list[ast.AugAssign]
) -> Accumulator | None:
    module, scope = loop.module, loop.module.scope(loop.node)
    owner = scope.lookup(name)
    if owner is None or owner[0] is not scope:
        return None
    starts: list[Binding] = []
    for binding in owner[1]:
        statement = module.statement(binding.node)
        if loop.node in module.ancestors(binding.node):
            if statement not in additions:
                return None
        elif statement.lineno < loop.node.lineno:
            starts.append(binding)
    if not starts or not _starts_at_zero(resolver, starts[-1], loop):
        return None
    own = {target for addition in additions for target in walk(addition.target)}
    looked_at = read_later = False
    for use in module.names_of(name):
        if use in own or module.scope(use).lookup(name) != owner:
            continue
        if loop.node in module.ancestors(use):
            looked_at = True
        else:
            read_later = read_later or isinstance(use.ctx, ast.Load)
    kinds = {
        ShareOf(resolver, [loop.node]).of(addition.value, module)
        if not isinstance(addition.target, ast.Subscript)
        else None
        for addition in additions
    }
    share = kinds.pop() if len(kinds) == 1 else None
    return Accumulator(module, additions[0], loop, name, share, looked_at, read_later)


def _starts_at_zero(resolver: Resolver, start: Binding, loop: Loop) -> bool:
    """Whether ``start`` makes the variable zero each time that ``loop`` is about to begin."""
    module, source = loop.module, start.source
    if not isinstance(source, Assigned) or not _is_zero(resolver, source, module):
        return False
    block = module.block(module.statement(start.node))
    for around in [loop.node, *module.ancestors(loop.node)]:
        if not isinstance(around, ast.stmt) or isinstance(around, ast.FunctionDef | ast.ClassDef):
            return False
        if around is not loop.node and isinstance(around, ast.For | ast.AsyncFor | ast.While):
            return False
        if around in block:
            return True
    return False


def _is_zero(resolver: Resolver, source: Assigned, module: Module) -> bool:
    value: ast.expr = source.value
    for part in source.path:
        if not isinstance(value, ast.Tuple | ast.List) or not isinstance(part, int):
            return False
        value = value.elts[part]
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in _SAME_NUMBER:
            break
        value = value.func.value
    match value:
        case ast.Constant(value=number):
            return type(number) in {int, float} and number == 0
        case ast.Call(func=function):
            names = resolver.names(function, module)
            if names == frozenset({"torch.tensor"}):
                first = value.args[0] if value.args else None
                first = first.elts[0] if isinstance(first, ast.List) and first.elts else first
                return isinstance(first, ast.Constant) and first.value == 0
            return bool(names) and names <= _ZEROS
        case _:
            return False


class ShareOf:
    """What the numbers that ``roots``, a training loop, compute in one process are to those of all processes.

    Every process has an equal part of every batch.
    """

    def __init__(self, resolver: Resolver, roots: Collection[ast.AST]) -> None:
        self._resolver, self._roots = resolver, frozenset(roots)

    def of(self, value: ast.expr, module: Module) -> Share | None:
        """The share of ``value``, None when that is not understood."""
        if not self._is_made_in_loop(value, module):
            return Share.SAME
        match value:
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                kinds = {self.of(left, module), self.of(right, module)}
                return kinds.pop() if len(kinds) == 1 else None
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return _product(self.of(left, module), self.of(right, module))
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return _quotient(self.of(left, module), self.of(right, module))
            case (
                ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=0))
                | ast.Call(func=ast.Attribute(attr="size"), args=[ast.Constant(value=0)])
            ):
                return Share.SUM
            case ast.Attribute(value=inner, attr=name) if name in _SAME_NUMBER:
                return self.of(inner, module)
            case ast.Call():
                return self._of_call(value, module)
            case ast.Name():
                return self._of_name(value, module)
            case _:
                return None

    def _of_call(self, call: ast.Call, module: Module) -> Share | None:
        function, names = call.func, self._resolver.names(call.func, module)
        if names and names <= _CONVERSIONS and len(call.args) == 1:
            return self.of(call.args[0], module)
        if names == frozenset({"builtins.len"}):
            return Share.SUM
        if names & {"torch.sum", "torch.mean"} and len(call.args) == 1 and not call.keywords:
            return Share.SUM if "torch.sum" in names else Share.MEAN
        if _is_mean_loss(self._resolver, call, module):
            return Share.MEAN
        if self._sums_up(call, module):
            return Share.SUM
        callees = self._resolver.callees(call, module)
        if len(callees) == 1 and isinstance(callees[0].node, ast.FunctionDef):
            return self._returned(callees[0].node, callees[0].module)
        if isinstance(function, ast.Attribute) and not callees:
            if function.attr in {"sum", "mean"} and not call.args and not call.keywords:
                if self._is_result(function.value, module):
                    return None  # elements of its output, or a loss that it has computed itself
                return Share.SUM if function.attr == "sum" else Share.MEAN
            if function.attr in _SAME_NUMBER:
                return self.of(function.value, module)
        return None

    def _is_result(self, value: ast.expr, module: Module) -> bool:
        """Whether ``value`` is what a network returns."""
        if isinstance(value, ast.Name):
            sources = [binding.source for binding in self._bindings(value, module)]
            return any(
                isinstance(source, Assigned)
                and isinstance(source.value, ast.Call)
                and is_forward(self._resolver, source.value, module)
                for source in sources
            )
        return isinstance(value, ast.Call) and is_forward(self._resolver, value, module)

    def _sums_up(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` is a loss that is told to add up what its samples contribute."""
        made = [(call, module)]
        if call_argument(call, "reduction") is None:
            values = self._resolver.values(call.func, module)
            made = [(v.call, v.module) for v in values if isinstance(v, Made)]
            if len(made) < len(values):
                return False
        told = [(call_argument(maker, "reduction"), maker, owner) for maker, owner in made]
        return all(
            isinstance(reduction, ast.Constant)
            and reduction.value == "sum"
            and any(
                name.startswith("torch.nn.") for name in self._resolver.names(maker.func, owner)
            )
            for reduction, maker, owner in told
        )

    def _returned(self, function: ast.FunctionDef, module: Module) -> Share | None:
        """The share of what ``function`` returns, given parts of the batch."""
        returns = [n for n in lexical_nodes(function.body) if isinstance(n, ast.Return)]
        if len(returns) != 1 or returns[0].value is None or function in self._roots:
            return None
        return ShareOf(self._resolver, {*self._roots, function}).of(returns[0].value, module)

    def _of_name(self, name: ast.Name, module: Module) -> Share | None:
        if _is_mean_loss(self._resolver, name, module):
            return Share.MEAN
        kinds: set[Share | None] = set()
        for binding in self._bindings(name, module):
            match binding.source:
                case Assigned(value=value, path=()) if name not in walk(value):
                    rebinds = any(is_name(n, name.id) for n in walk(value))
                    kinds.add(None if rebinds else self.of(value, module))
                case Iterated(path=(0,)):  # of `enumerate`
                    kinds.add(Share.SAME)
                case _:
                    kinds.add(None)
        return kinds.pop() if len(kinds) == 1 else None

    def _bindings(self, name: ast.Name, module: Module) -> Iterator[Binding]:
        """The bindings of ``name`` in the loop, or in a function that it calls."""
        found = module.scope(name).lookup(name.id)
        for binding in found[1] if found else ():
            if not self._roots.isdisjoint(module.ancestors(binding.node)):
                yield binding

    def _is_made_in_loop(self, value: ast.expr, module: Module) -> bool:
        return any(
            isinstance(node, ast.Name) and next(self._bindings(node, module), None) is not None
            for node in walk(value)
        )


def _is_mean_loss(resolver: Resolver, value: ast.expr, module: Module) -> bool:
    return not_a_mean(resolver, value, module, AnyTargets()) is None or returns_mean(
        resolver, value, module
    )


def _product(left: Share | None, right: Share | None) -> Share | None:
    if Share.SAME in {left, right}:
        return left if right is Share.SAME else right
    return Share.SUM if {left, right} == {Share.MEAN, Share.SUM} else None


def _quotient(left: Share | None, right: Share | None) -> Share | None:
    if right is Share.SAME:
        return left
    return Share.MEAN if left is right is Share.SUM else None
