"""Loops that train in some calls of their function and evaluate in the others: ``run_epoch(val_loader, train=False)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..calls.reach import lexical_nodes
from ..calls.signatures import argument_for
from ..facts import DataLoader, Loop, LoopKind, Phase
from ..program.parameters import parameter_names
from ..program.scopes import Assigned, BindingSource, Parameter
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.resolver import CallSite, Resolver
from ..values.values import External, Instance, Literal, Made, Value
from .guards import calls_to_backward, makes_object
from .loops import iterated_loaders

_OPPOSITES: dict[type[ast.cmpop], str] = {
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.Eq: "!=",
    ast.NotEq: "==",
}


@dataclass(frozen=True)
class _Condition:
    test: ast.expr
    holds: bool

    def code(self, module: Module) -> str:
        """How it reads where it holds that the loop trains."""
        code = module.code(self.test)
        if self.holds:
            return code
        match self.test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return module.code(operand)
            case ast.Compare(left=left, ops=[op], comparators=[to]) if type(op) in _OPPOSITES:
                return f"{module.code(left)} {_OPPOSITES[type(op)]} {module.code(to)}"
            case ast.Name():
                return f"not {code}"
            case _:
                return f"not ({code})"


def with_phases(
    resolver: Resolver, loaders: tuple[DataLoader, ...], loops: tuple[Loop, ...]
) -> tuple[Loop, ...]:
    """``loops`` with the phase in which each trains that goes over other ``loaders`` to evaluate them."""
    return tuple(replace(loop, phase=_phase(resolver, loaders, loop)) for loop in loops)


def _phase(resolver: Resolver, loaders: tuple[DataLoader, ...], loop: Loop) -> Phase | None:
    function = loop.function
    if loop.kind is not LoopKind.TRAINING or len(loop.loaders) < 2:
        return None
    if not isinstance(function, ast.FunctionDef):
        return None
    phases = (
        _phase_of(resolver, loaders, loop, function, condition)
        for condition in _conditions(resolver, loop, function)
    )
    return next(filter(None, phases), None)


def _conditions(resolver: Resolver, loop: Loop, function: FunctionNode) -> Iterator[_Condition]:
    """The tests in the loop, of parameters alone, on which all its backward passes hang."""
    module = loop.module
    backwards = calls_to_backward(resolver, loop.node, module)
    for node in lexical_nodes(loop.node.body):
        if not isinstance(node, ast.If) or not _asks_parameters(node.test, function, module):
            continue
        for block, holds in _branches(node, module):
            inside = {*lexical_nodes(block)}
            if backwards and inside.issuperset(backwards):
                yield _Condition(node.test, holds)


def _branches(test: ast.If, module: Module) -> Iterator[tuple[list[ast.stmt], bool]]:
    """The statements that run only where ``test`` holds, and those that run only where it does not."""
    yield test.body, True
    yield test.orelse, False
    if isinstance(test.body[-1], ast.Continue) and not test.orelse:
        around = module.block(test)
        yield around[around.index(test) + 1 :], False


def _asks_parameters(test: ast.expr, function: FunctionNode, module: Module) -> bool:
    """Whether all that is looked at in ``test`` are parameters of ``function``, or made of such, and not bound again."""
    for node in walk(test):
        if isinstance(node, ast.Attribute | ast.Call | ast.Subscript | ast.NamedExpr):
            return False
        if isinstance(node, ast.Name):
            source = _only_source(node, module)
            if isinstance(source, Assigned) and not source.path:
                above = source.value.lineno < test.lineno and not module.loops(source.value)
                in_function = module.function(source.value) is function
                if not (above and in_function and _asks_parameters(source.value, function, module)):
                    return False
            elif not (isinstance(source, Parameter) and source.function is function):
                return False
    return True


def _only_source(name: ast.Name, module: Module) -> BindingSource | None:
    """What binds the variable ``name``, if only one place does."""
    found = module.scope(name).lookup(name.id)
    return found[1][0].source if found is not None and len(found[1]) == 1 else None


def _phase_of(
    resolver: Resolver,
    loaders: tuple[DataLoader, ...],
    loop: Loop,
    function: FunctionNode,
    condition: _Condition,
) -> Phase | None:
    trains: list[tuple[ast.Call, Module]] = []
    over: dict[bool, dict[DataLoader, None]] = {True: {}, False: {}}
    for site in resolver.call_sites(function):
        truth = _Asked(resolver, function, loop.module, site).truth(condition.test)
        if truth is None:
            return None
        phase = truth is condition.holds
        if phase:
            trains.append((site.call, site.module))
        given = _loaders_given(resolver, loaders, function, site)
        over[phase] |= dict.fromkeys(each for each in given if each in loop.loaders)
    apart = over[True].keys().isdisjoint(over[False])
    if not (over[True] and over[False] and apart) or {*loop.loaders} - {*over[True], *over[False]}:
        return None
    return Phase(condition.code(loop.module), tuple(trains), tuple(over[True]))


def _loaders_given(
    resolver: Resolver, loaders: tuple[DataLoader, ...], function: FunctionNode, site: CallSite
) -> Iterator[DataLoader]:
    """The loaders among the arguments of ``site``."""
    for name in parameter_names(function):
        passed = argument_for(function, name, site.call, site.bound)
        if passed is not None and passed.given is not None:
            yield from iterated_loaders(resolver, loaders, passed.given, site.module)[0]


@dataclass(frozen=True)
class _Asked:
    """What tests of the parameters of ``function``, which is in ``module``, come to in the call ``site``."""

    resolver: Resolver
    function: FunctionNode
    module: Module
    site: CallSite

    def truth(self, test: ast.expr) -> bool | None:
        """Whether ``test`` holds; None when that is not known."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self.truth(operand)
                return None if truth is None else not truth
            case ast.BoolOp(op=op, values=parts):
                truths = {self.truth(part) for part in parts}
                settles = isinstance(op, ast.Or)
                if settles in truths:
                    return settles
                return None if None in truths else not settles
            case ast.Name() if isinstance(source := _only_source(test, self.module), Assigned):
                return self.truth(source.value)
            case ast.Name():
                return _same(_truth(value) for value in self._values(test))
            case ast.Compare(
                left=ast.Name() as name, ops=[op], comparators=[ast.Constant(value=to)]
            ):
                return _same(_compared(v, op, to) for v in self._values(name))
            case _:
                return None

    def _values(self, name: ast.Name) -> Iterator[Value]:
        passed = argument_for(self.function, name.id, self.site.call, self.site.bound)
        if passed is None:
            return
        if passed.given is not None:
            yield from self.resolver.values(passed.given, self.site.module)
        elif passed.default is not None:
            yield from self.resolver.values(passed.default, self.module)


def _truth(value: Value) -> bool | None:
    """Whether ``value`` is true in a test; an optimizer is."""
    match value:
        case Literal(value=literal):
            return bool(literal)
        case Made(maker=External(name=name)) if name.startswith("torch.optim."):
            return True
        case _:
            return None


def _compared(value: Value, op: ast.cmpop, to: object) -> bool | None:
    """Whether ``value`` is what it is compared to; an object is never None."""
    if isinstance(value, Literal):
        equal = value.value == to and isinstance(value.value, type(to))
    elif to is None and _is_object(value):
        equal = False
    else:
        return None
    match op:
        case ast.Eq() | ast.Is():
            return equal
        case ast.NotEq() | ast.IsNot():
            return not equal
        case _:
            return None


def _is_object(value: Value) -> bool:
    return isinstance(value, Instance) or (isinstance(value, Made) and makes_object(value.maker))


def _same(truths: Iterator[bool | None]) -> bool | None:
    """What all of ``truths`` are; None where they are not the same or not known."""
    found = {*truths}
    return found.pop() if len(found) == 1 else None
