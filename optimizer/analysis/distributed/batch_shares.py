"""What a number that a training loop computes in one process is to that of all processes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from ..calls.reach import lexical_nodes
from ..calls.signatures import call_argument
from ..networks.forward_losses import returns_mean
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding, Iterated, Path
from ..program.syntax import Module
from ..program.trees import is_name, walk
from ..training.batch_targets import AnyTargets
from ..training.loops import is_forward
from ..training.loss_reductions import LossReductions
from ..training.mean_losses import not_a_mean
from ..training.reductions import Reduced, Reduction
from ..values.resolver import Resolver
from ..values.unpacking import element_at, written_part
from ..values.values import Made

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
                    is_number &= inner.is_number(addition.value, module) or _is_compared(
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
            case ast.Attribute(value=inner, attr=name) if name in _SAME_NUMBER:
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
        if _is_mean_loss(self._resolver, call, module):
            return Share.MEAN
        if self._sums_up(call, module):
            return Share.SUM
        callees = self._resolver.callees(call, module)
        if len(callees) == 1 and isinstance(callees[0].node, ast.FunctionDef):
            returned = self._returned(callees[0].node, callees[0].module)
            if returned is not None:
                return returned
        if callees:  # a loss of the script's own
            kinds = {LossReductions(self._resolver, r).of(call, module) for r in self._roots}
            return _BY_REDUCTION.get(kinds.pop()) if len(kinds) == 1 else None
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
        if _adds_up_samples(call):
            return Share.SUM
        if name in {"mul", "mul_"} and len(call.args) == 1:
            return self._of_product(number, call.args[0], module)
        if name in {"div", "div_"} and len(call.args) == 1:
            return _quotient(self.of(number, module), self.of(call.args[0], module))
        return self.of(number, module) if name in _SAME_NUMBER else None

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
                kinds = {inner.of(each, module) for each in _listed(value, function)}
                return kinds.pop() if len(kinds) == 1 else None
            case _:
                return None

    def _of_name(self, name: ast.Name, module: Module) -> Share | None:
        if _is_mean_loss(self._resolver, name, module):
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


def _is_mean_loss(resolver: Resolver, value: ast.expr, module: Module) -> bool:
    return not_a_mean(resolver, value, module, AnyTargets()) is None or returns_mean(
        resolver, value, module
    )


def _is_compared(value: ast.expr) -> bool:
    """Whether ``value`` counts how many numbers are equal, which has no gradient."""
    return any(
        isinstance(node, ast.Compare)
        or (isinstance(node, ast.Attribute) and node.attr in {"eq", "eq_"})
        for node in walk(value)
    ) and not any(isinstance(node, ast.BinOp) for node in walk(value))


def _adds_up_samples(call: ast.Call) -> bool:
    """Whether ``call`` is ``x.view(-1).sum(0)``: all elements, of whatever shape they were."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "sum":
        return False
    given = [*call.args, *(k.value for k in call.keywords if k.arg == "dim")]
    if len(given) != 1 or not isinstance(given[0], ast.Constant) or given[0].value != 0:
        return False
    value = function.value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        flat = [ast.unparse(argument) for argument in value.args]
        if (value.func.attr in {"view", "reshape"} and flat == ["-1"]) or (
            value.func.attr == "flatten" and not flat
        ):
            return True
        if value.func.attr not in _SAME_NUMBER:
            return False
        value = value.func.value
    return False


def _listed(name: ast.Name, function: ast.FunctionDef) -> Iterator[ast.expr]:
    """What ``function`` appends to its list ``name``."""
    for node in lexical_nodes(function.body):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=listed), attr="append"), args=[given]
            ) if listed == name.id:
                yield given
            case _:
                pass


def _product(left: Share | None, right: Share | None) -> Share | None:
    if Share.SAME in {left, right}:
        return left if right is Share.SAME else right
    return Share.SUM if {left, right} == {Share.MEAN, Share.SUM} else None


def _quotient(left: Share | None, right: Share | None) -> Share | None:
    if right is Share.SAME:
        return left
    return Share.MEAN if left is right is Share.SUM else None


def converted(binding: Binding) -> ast.Name | None:
    """The variable itself, where ``binding`` makes another kind of number of it: ``correct = int(correct)``."""
    source = binding.source
    if not isinstance(source, Assigned) or source.path:
        return None
    value: ast.expr = source.value
    while True:
        match value:
            case ast.Call(func=ast.Name(id="float" | "int"), args=[given], keywords=[]):
                value = given
            case ast.Call(func=ast.Attribute(value=given, attr=attr), args=[], keywords=[]) if (
                attr in _SAME_NUMBER
            ):
                value = given
            case ast.Name() if value.id == binding.name:
                return value
            case _:
                return None


def makes_zero(resolver: Resolver, binding: Binding, module: Module) -> bool:
    source = binding.source
    return isinstance(source, Assigned) and _is_zero(resolver, source, module)


def _is_zero(resolver: Resolver, source: Assigned, module: Module) -> bool:
    value = written_part(source.value, source.path)
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
