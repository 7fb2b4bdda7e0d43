"""What a number that a training loop computes in one process is to that of all processes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from ..calls.reach import lexical_nodes
from ..calls.signatures import call_argument
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding, Iterated, Path
from ..program.syntax import Module, first_name
from ..program.trees import is_name, walk
from ..training.loops import is_forward
from ..training.loss_reductions import LossReductions
from ..training.reductions import Reduced, Reduction
from ..values.resolver import Resolver
from ..values.unpacking import element_at
from ..values.values import Made
from .number_forms import (
    SAME_NUMBER,
    adds_up_samples,
    converted,
    goes_on,
    is_compared,
    is_mean_loss,
    listed,
    makes_zero,
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


@dataclass(frozen=True)
class RunningSum:
    """What is added up so far, where a loop reads it.

    ``is_single``: it is one number or a tensor without dimensions; ``is_number``: it is no tensor, or none with a graph.
    """

    share: Share
    is_single: bool
    is_number: bool


_BY_REDUCTION: dict[Reduced, Share] = {
    Reduction.SUM: Share.SUM,
    Reduction.MEAN: Share.MEAN,
    Reduction.WEIGHTED: Share.MEAN,
    Reduction.REPLICAS: Share.MEAN,
}


class ShareOf:
    """What the numbers that ``roots``, a training loop, compute in one process are to those of all processes.

    Every process has an equal part of every batch.
    """

    def __init__(
        self,
        resolver: Resolver,
        roots: Collection[ast.AST],
        asked: frozenset[str] = frozenset(),
    ) -> None:
        self._resolver, self._roots = resolver, frozenset(roots)
        self._asked = asked

    def running_sum(self, name: ast.Name, module: Module) -> RunningSum | None:
        """What the variable ``name`` has added up where it stands; None when it is not only zero and added to."""
        found = module.scope(name).lookup(name.id)
        if found is None or name.id in self._asked:
            return None
        inner = ShareOf(self._resolver, self._roots, self._asked | {name.id})
        pending, seen = [name], set[Binding]()
        kinds: set[Share | None] = set()
        is_single, is_number, is_converted = True, True, False
        while pending:
            use = pending.pop()
            for binding in reaching_bindings(module, *found, module.scope(use), use):
                addition = module.parents.get(binding.node)
                if binding in seen:
                    continue
                seen.add(binding)
                if makes_zero(self._resolver, binding, module):
                    assert isinstance(binding.source, Assigned)
                    is_single &= not any(
                        isinstance(node, ast.Call) for node in walk(binding.source.value)
                    )
                elif (earlier := converted(binding)) is not None:
                    pending.append(earlier)
                    is_converted = True
                elif (
                    isinstance(addition, ast.AugAssign)
                    and isinstance(addition.op, ast.Add)
                    and isinstance(addition.target, ast.Name)
                    and not self._roots.isdisjoint(module.ancestors(addition))
                ):
                    kinds.add(inner.of(addition.value, module))
                    is_number &= inner.is_number(addition.value, module) or is_compared(
                        addition.value
                    )
                    pending.append(addition.target)
                else:
                    return None
        share = kinds.pop() if len(kinds) == 1 else None
        if share is None:
            return None
        return RunningSum(share, is_single, is_converted or (is_single and is_number))

    def is_number(self, value: ast.expr, module: Module) -> bool:
        """Whether ``value`` is seen to be a number of Python's, not a tensor."""
        match value:
            case ast.Constant():
                return True
            case ast.Call(func=ast.Attribute(attr="item" | "size" | "numel" | "dim")):
                return True
            case ast.Call(func=function):
                names = self._resolver.names(function, module)
                return bool(names) and names <= _CONVERSIONS | {"builtins.len", "builtins.round"}
            case ast.Subscript(value=ast.Attribute(attr="shape")):
                return True
            case ast.BinOp(left=left, right=right):
                return self.is_number(left, module) and self.is_number(right, module)
            case ast.Name():
                sources = [binding.source for binding in self._bindings(value, module)]
                return bool(sources) and all(
                    isinstance(source, Assigned)
                    and not source.path
                    and self.is_number(source.value, module)
                    for source in sources
                    if value not in walk(getattr(source, "value", value))
                )
            case _:
                return False

    def of(self, value: ast.expr, module: Module) -> Share | None:
        """The share of ``value``, None when that is not understood."""
        if not self._is_made_in_loop(value, module):
            return Share.SAME
        found = self._made_of(value, module)
        if found is None and isinstance(value, ast.Name | ast.Attribute | ast.Subscript):
            base = first_name(value)
            if base is not None and not goes_on(base, module, self._roots):
                return self._reduced(value, module)
        return found

    def _reduced(self, value: ast.expr, module: Module) -> Share | None:
        """The share of what the script's own code reduces: a loss."""
        kinds = {LossReductions(self._resolver, root).of(value, module) for root in self._roots}
        return _BY_REDUCTION.get(kinds.pop()) if len(kinds) == 1 else None

    def _made_of(self, value: ast.expr, module: Module) -> Share | None:
        match value:
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                kinds = {self.of(left, module), self.of(right, module)}
                return kinds.pop() if len(kinds) == 1 else None
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self._of_product(left, right, module)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return _quotient(self.of(left, module), self.of(right, module))
            case (
                ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=0))
                | ast.Call(func=ast.Attribute(attr="size"), args=[ast.Constant(value=0)])
            ):
                return Share.SUM
            case ast.Subscript(value=inner, slice=ast.Constant(value=int())):
                return self.of(inner, module)
            case ast.Attribute(value=inner, attr=name) if name in SAME_NUMBER:
                return self.of(inner, module)
            case ast.Call():
                return self._of_call(value, module)
            case ast.Name():
                return self._of_name(value, module)
            case _:
                return None

    def _of_product(self, left: ast.expr, right: ast.expr, module: Module) -> Share | None:
        for one, other in ((left, right), (right, left)):
            if isinstance(other, ast.BinOp) and isinstance(
                other.op, ast.Div
            ):  # correct * (100 / n)
                above = _product(self.of(one, module), self.of(other.left, module))
                return _quotient(above, self.of(other.right, module))
        return _product(self.of(left, module), self.of(right, module))

    def _of_call(self, call: ast.Call, module: Module) -> Share | None:
        function, names = call.func, self._resolver.names(call.func, module)
        if names and names <= _CONVERSIONS and len(call.args) == 1:
            return self.of(call.args[0], module)
        if names == frozenset({"builtins.len"}):
            return Share.SUM
        if names & {"torch.sum", "torch.mean"} and len(call.args) == 1 and not call.keywords:
            return Share.SUM if "torch.sum" in names else Share.MEAN
        if is_mean_loss(self._resolver, call, module):
            return Share.MEAN
        if self._sums_up(call, module):
            return Share.SUM
        callees = self._resolver.callees(call, module)
        if len(callees) == 1 and isinstance(callees[0].node, ast.FunctionDef):
            returned = self._returned(callees[0].node, callees[0].module)
            if returned is not None:
                return returned
        if callees:  # a loss of the script's own
            return self._reduced(call, module)
        if isinstance(function, ast.Attribute) and not callees:
            return self._of_method(call, function, module)
        return None

    def _of_method(self, call: ast.Call, method: ast.Attribute, module: Module) -> Share | None:
        """The share of what a tensor's ``method`` makes of it."""
        number, name = method.value, method.attr
        if name in {"sum", "mean"} and not call.args and not call.keywords:
            if self._is_result(number, module):
                return None  # elements of its output, or a loss that it has computed itself
            return Share.SUM if name == "sum" else Share.MEAN
        if adds_up_samples(call):
            return Share.SUM
        if name in {"mul", "mul_"} and len(call.args) == 1:
            return self._of_product(number, call.args[0], module)
        if name in {"div", "div_"} and len(call.args) == 1:
            return _quotient(self.of(number, module), self.of(call.args[0], module))
        return self.of(number, module) if name in SAME_NUMBER else None

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

    def _returned(self, function: ast.FunctionDef, module: Module, path: Path = ()) -> Share | None:
        """The share of what ``function`` returns, or of a part of it, given parts of the batch."""
        returns = [n for n in lexical_nodes(function.body) if isinstance(n, ast.Return)]
        if len(returns) != 1 or returns[0].value is None or function in self._roots:
            return None
        inner, value = ShareOf(self._resolver, {*self._roots, function}), returns[0].value
        match value, path:
            case _, ():
                return inner.of(value, module)
            case ast.Tuple(elts=elements) | ast.List(elts=elements), (int() as index,):
                element = element_at(elements, index)
                return inner.of(element, module) if element is not None else None
            case ast.ListComp(elt=element), (int(),):
                return inner.of(element, module)
            case ast.Name(), (int(),):
                kinds = {inner.of(each, module) for each in listed(value, function)}
                return kinds.pop() if len(kinds) == 1 else None
            case _:
                return None

    def _of_name(self, name: ast.Name, module: Module) -> Share | None:
        if is_mean_loss(self._resolver, name, module):
            return Share.MEAN
        kinds: set[Share | None] = set()
        bindings = list(self._bindings(name, module))
        if any(isinstance(module.parents.get(b.node), ast.AugAssign) for b in bindings):
            summed = self.running_sum(name, module)
            return summed.share if summed is not None else None
        for binding in bindings:
            match binding.source:
                case Assigned(value=value, path=()) if name not in walk(value):
                    rebinds = any(is_name(n, name.id) for n in walk(value))
                    kinds.add(None if rebinds else self.of(value, module))
                case Assigned(value=ast.Call() as call, path=(int(),) as path):
                    callees = self._resolver.callees(call, module)
                    node = callees[0].node if len(callees) == 1 else None
                    is_function = isinstance(node, ast.FunctionDef)
                    kinds.add(
                        self._returned(node, callees[0].module, path) if is_function else None
                    )
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


def _product(left: Share | None, right: Share | None) -> Share | None:
    if Share.SAME in {left, right}:
        return left if right is Share.SAME else right
    return Share.SUM if {left, right} == {Share.MEAN, Share.SUM} else None


def _quotient(left: Share | None, right: Share | None) -> Share | None:
    if right is Share.SAME:
        return left
    return Share.MEAN if left is right is Share.SUM else None
