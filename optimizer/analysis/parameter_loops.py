"""Loops over the parameters of networks that do one elementwise thing to each: soft updates, moving averages, clipping."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from .facts import Fact
from .name_uses import NameUses
from .obstacles import Obstacle
from .resolver import Resolver
from .signatures import call_argument
from .syntax import Module, last_identifier
from .trees import is_name, walk

_UPDATING = frozenset({"mul_", "lerp_", "add_", "copy_", "clamp_"})


class Rule(Enum):
    """How an average is written: which operations in which order, and so how it is rounded."""

    SUM = "t.copy_(kept * t + taken * p)"
    PRODUCT = "t.mul_(kept).add_(taken * p)"
    ALPHA = "t.mul_(kept).add_(p, alpha=taken)"
    LERP = "t.lerp_(p, taken)"


@dataclass(frozen=True)
class Operand:
    """A parameter of the loop as the script spells it: ``p``, ``p.data`` or ``p.detach()``."""

    name: str
    node: ast.expr

    @property
    def is_cut(self) -> bool:
        """Whether autograd does not see what is done to it."""
        return not isinstance(self.node, ast.Name)


@dataclass(frozen=True, eq=False)
class Average:
    """``target`` becomes ``kept`` times itself and ``taken`` times ``source``; a LERP says ``taken`` alone."""

    rule: Rule
    target: Operand
    source: Operand
    kept: ast.expr | None
    taken: ast.expr
    is_recorded: bool
    """Whether an operand stands there by its bare name, so that autograd would record what is done."""


@dataclass(frozen=True, eq=False)
class Clamp:
    """``weights`` (or their gradients, where ``of_gradients``) are kept between the bounds, of which one may be missing."""

    weights: Operand
    of_gradients: bool
    lower: ast.expr | None
    upper: ast.expr | None


Update: TypeAlias = Average | Clamp


@dataclass(frozen=True, eq=False)
class ParameterLoop(Fact):
    """A ``for`` over the parameters of networks with an ``update`` in its body.

    ``iterables`` are what each variable of ``update`` goes over; ``rest`` says what else the body does, None where it does
    nothing else.
    """

    node: ast.For
    iterables: dict[str, ast.expr]
    update: Update
    rest: str | None

    def owner(self, operand: Operand) -> ast.expr | None:
        """The network in ``network.parameters()`` that ``operand`` goes over; None where something else gives them."""
        match self.iterables[operand.name]:
            case ast.Call(ast.Attribute(owner, "parameters" | "named_parameters"), [], []):
                return owner
            case _:
                return None


def find_parameter_loops(resolver: Resolver) -> tuple[ParameterLoop, ...]:
    """The loops over parameters with such an update, in source order per module."""
    found: list[ParameterLoop] = []
    for module in resolver.project.modules:
        if not _UPDATING.isdisjoint(module.source.text.replace("(", " ").replace(".", " ").split()):
            loops = (_loop(node, module) for node in module.nodes_of(ast.For))
            found += sorted((loop for loop in loops if loop), key=lambda loop: loop.span)
    return tuple(found)


def _loop(node: ast.For, module: Module) -> ParameterLoop | None:
    iterables = _pair(node) or _single(node)
    if iterables is None:
        return None
    update, rest = _in_body(node.body, tuple(iterables))
    if update is None:
        return None
    used = {update.weights.name} if isinstance(update, Clamp) else set(iterables)
    if node.orelse:
        rest = "an `else`"
    return ParameterLoop(module, node, {n: iterables[n] for n in used}, update, rest)


def _single(node: ast.For) -> dict[str, ast.expr] | None:
    match node.target, node.iter:
        case ast.Name(name), ast.Call(ast.Attribute(attr="parameters")):
            return {name: node.iter}
        case ast.Name(name), ast.Subscript(ast.Name(), ast.Constant("params")):
            return {name: node.iter}
        case (
            ast.Tuple([ast.Name(), ast.Name(name)]),
            ast.Call(ast.Attribute(attr="named_parameters"), [], []),
        ):
            return {name: node.iter}
        case _:
            return None


def _pair(node: ast.For) -> dict[str, ast.expr] | None:
    match node.target, node.iter:
        case (
            ast.Tuple([first, second]),
            ast.Call(ast.Name("zip"), [one, other], [] | [ast.keyword("strict")]),
        ):
            pair = (_named(first, one), _named(second, other))
        case _:
            return None
    if pair[0] is None or pair[1] is None or pair[0] == pair[1]:
        return None
    return {pair[0]: one, pair[1]: other}


def _named(target: ast.expr, iterable: ast.expr) -> str | None:
    """The variable of ``target`` that is a parameter where it goes over ``iterable``."""
    match target, iterable:
        case ast.Name(name), ast.Call(ast.Attribute(attr="parameters"), [], []):
            return name
        case (
            ast.Tuple([ast.Name(), ast.Name(name)]),
            ast.Call(ast.Attribute(attr="named_parameters"), [], []),
        ):
            return name
        case _:
            return None


def _in_body(body: list[ast.stmt], names: tuple[str, ...]) -> tuple[Update | None, str | None]:
    """The update in ``body``, and what else it does."""
    for start in range(len(body)):
        for length in (2, 1):
            part = body[start : start + length]
            update = _average(part, names) if len(names) == 2 else _clamp(part, names[0])
            if update is not None:
                others = [s for s in body if s not in part]
                return update, f"`{ast.unparse(others[0]).splitlines()[0]}`" if others else None
    for statement in body:
        if isinstance(statement, ast.If):
            update, _ = _in_body(statement.body, names)
            if update is not None:
                return update, f"`if {ast.unparse(statement.test)}`"
    return None, None


def operand(node: ast.expr, names: Sequence[str]) -> Operand | None:
    """The parameter that ``node`` is, with nothing done to it."""
    inner = node
    while True:
        match inner:
            case ast.Attribute(value, "data") | ast.Call(ast.Attribute(value, "detach"), [], []):
                inner = value
            case ast.Name(name) if name in names:
                return Operand(name, node)
            case _:
                return None


def _average(body: Sequence[ast.stmt], names: Sequence[str]) -> Average | None:
    calls = [s.value for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
    if len(calls) != len(body):
        return None
    match calls:
        case [ast.Call(ast.Attribute(receiver, "copy_"), [ast.BinOp(left, ast.Add(), right)], [])]:
            return _weighted(Rule.SUM, receiver, (left, right), names)
        case [ast.Call(ast.Attribute(receiver, "lerp_"), [source, weight], [])]:
            return _made(Rule.LERP, receiver, source, None, weight, names)
        case [
            ast.Call(ast.Attribute(receiver, "mul_"), [kept], []),
            ast.Call(ast.Attribute(again, "add_")) as added,
        ] if ast.dump(receiver) == ast.dump(again):
            return _scaled(receiver, kept, added, names)
        case [
            ast.Call(
                ast.Attribute(ast.Call(ast.Attribute(receiver, "mul_"), [kept], []), "add_")
            ) as added
        ]:
            return _scaled(receiver, kept, added, names)
        case _:
            return None


def _scaled(
    receiver: ast.expr, kept: ast.expr, added: ast.Call, names: Sequence[str]
) -> Average | None:
    """``receiver.mul_(kept)`` and then ``added``."""
    match added.args, added.keywords:
        case [source], [ast.keyword("alpha", taken)]:
            return _made(Rule.ALPHA, receiver, source, kept, taken, names)
        case [taken, source], [] if operand(source, names):
            return _made(Rule.ALPHA, receiver, source, kept, taken, names)
        case [product], []:
            taken, source = _product(product, names)
            if taken is not None and source is not None:
                return _made(Rule.PRODUCT, receiver, source, kept, taken, names)
        case _:
            pass
    return None


def _weighted(
    rule: Rule, receiver: ast.expr, terms: tuple[ast.expr, ast.expr], names: Sequence[str]
) -> Average | None:
    """``receiver`` becomes the sum of ``terms``, one of which is a part of itself."""
    target = operand(receiver, names)
    (one, first), (other, second) = (_product(term, names) for term in terms)
    if target is None or one is None or other is None or first is None or second is None:
        return None
    one_operand, other_operand = operand(first, names), operand(second, names)
    if one_operand is None or other_operand is None:
        return None
    if one_operand.name == target.name:
        return _made(rule, receiver, second, one, other, names, first)
    return _made(rule, receiver, first, other, one, names, second)


def _product(node: ast.expr, names: Sequence[str]) -> tuple[ast.expr, ast.expr] | tuple[None, None]:
    """The factor and the parameter that ``node`` multiplies."""
    match node:
        case ast.BinOp(left, ast.Mult(), right) if operand(right, names):
            return left, right
        case ast.BinOp(left, ast.Mult(), right) if operand(left, names):
            return right, left
        case _:
            return None, None


def _made(
    rule: Rule,
    receiver: ast.expr,
    source: ast.expr,
    kept: ast.expr | None,
    taken: ast.expr,
    names: Sequence[str],
    read: ast.expr | None = None,
) -> Average | None:
    target, other = operand(receiver, names), operand(source, names)
    again = target if read is None else operand(read, names)
    if target is None or other is None or again is None:
        return None
    if target.name == other.name or again.name != target.name:
        return None
    if any(_mentions(factor, names) for factor in (kept, taken)):
        return None
    recorded = not (target.is_cut and other.is_cut and again.is_cut)
    return Average(rule, target, other, kept, taken, recorded)


def _mentions(node: ast.expr | None, names: Sequence[str]) -> bool:
    return node is not None and any(is_name(n, name) for n in walk(node) for name in names)


def _clamp(body: Sequence[ast.stmt], name: str) -> Clamp | None:
    match body:
        case [ast.If(test, inner, [])] if _has_gradient(test, name):
            found = _clamp(inner, name)
            return found if found is not None and found.of_gradients else None
        case [ast.Expr(ast.Call(ast.Attribute(clamped, "clamp_")) as call)]:
            pass
        case _:
            return None
    bounds = _bounds(call)
    if bounds is None or any(_mentions(bound, [name]) for bound in bounds):
        return None
    weights = operand(clamped, [name])
    if weights is not None:
        return Clamp(weights, False, *bounds)
    while isinstance(clamped, ast.Attribute) and clamped.attr == "data":
        clamped = clamped.value
    if (
        isinstance(clamped, ast.Attribute)
        and clamped.attr == "grad"
        and is_name(clamped.value, name)
    ):
        return Clamp(Operand(name, clamped.value), True, *bounds)
    return None


def _has_gradient(test: ast.expr, name: str) -> bool:
    match test:
        case ast.Compare(
            ast.Attribute(ast.Name(tested), "grad"),
            [ast.IsNot() | ast.NotEq()],
            [ast.Constant(None)],
        ):
            return tested == name
        case _:
            return False


def _bounds(call: ast.Call) -> tuple[ast.expr | None, ast.expr | None] | None:
    """The least and the greatest value that ``x.clamp_(..)`` leaves."""
    given: dict[str, ast.expr] = dict(zip(("min", "max"), call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg not in {"min", "max"}:
            return None
        given[keyword.arg] = keyword.value
    if not given or len(call.args) > 2 or any(isinstance(v, ast.Starred) for v in given.values()):
        return None
    return given.get("min"), given.get("max")


def symmetric_bound(clamp: Clamp) -> ast.expr | None:
    """``c`` where ``clamp`` is between ``-c`` and ``c``."""
    lower, upper = clamp.lower, clamp.upper
    if lower is None or upper is None:
        return None
    match lower:
        case ast.UnaryOp(ast.USub(), operand=negated) if ast.dump(negated) == ast.dump(upper):
            return upper
        case _:
            return None


def read_later(loop: ParameterLoop) -> ast.Name | None:
    """Where a variable of ``loop`` is read that still has the value of its last pass."""
    uses = NameUses()
    inside = set(walk(loop.node))
    scope = loop.module.scope(loop.node)
    for target in walk(loop.node.target):
        if isinstance(target, ast.Name):
            found = scope.lookup(target.id)
            for binding in found[1] if found else ():
                if binding.node is target:
                    for use in uses.of(binding, loop.module):
                        if use not in inside and isinstance(use.ctx, ast.Load):
                            return use
    return None


def kept_gradient_graph(resolver: Resolver) -> Obstacle | None:
    """Where gradients that parameters get may be part of a graph, which does not let them be changed in place."""
    for module in resolver.project.modules:
        for call in module.calls:
            create = call_argument(call, "create_graph")
            if create is None or (isinstance(create, ast.Constant) and not create.value):
                continue
            if last_identifier(call.func) == "backward" or _sets_gradients(resolver):
                return Obstacle(module, call, "gradients are part of a graph")
    return None


def _sets_gradients(resolver: Resolver) -> bool:
    return any(
        isinstance(node.ctx, ast.Store)
        for module in resolver.project.modules
        for node in module.attributes_of("grad")
    )
