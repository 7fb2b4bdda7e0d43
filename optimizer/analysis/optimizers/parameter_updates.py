"""One elementwise thing that is done to a parameter of a network: a soft update, a moving average, clipping."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ..program.trees import is_name, walk


class Rule(Enum):
    """How an average is written: which operations in which order, and so how it is rounded."""

    SUM = "t.copy_(kept * t + taken * p)"
    PRODUCT = "t.mul_(kept).add_(taken * p)"
    ALPHA = "t.mul_(kept).add_(p, alpha=taken)"
    LERP = "t.lerp_(p, taken)"
    REBOUND = "t.data = kept * t + taken * p"


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


def average(body: Sequence[ast.stmt], names: Sequence[str]) -> Average | None:
    """The average that ``body`` takes of the parameters ``names``, None when it does anything else."""
    match body:
        case [ast.Assign([ast.Attribute(receiver, "data")], ast.BinOp(left, ast.Add(), right))]:
            return _weighted(Rule.REBOUND, receiver, (left, right), names)
        case _:
            pass
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
        kept, taken, source, read = one, other, second, first
    else:
        kept, taken, source, read = other, one, first, second
    if rule is Rule.REBOUND:  # what gets other memory is the parameter itself
        return (
            _made(rule, read, source, kept, taken, names)
            if isinstance(receiver, ast.Name)
            else None
        )
    return _made(rule, receiver, source, kept, taken, names, read)


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


def clamp(body: Sequence[ast.stmt], name: str) -> Clamp | None:
    """How ``body`` clamps the parameter ``name`` or its gradient, None when it does anything else."""
    match body:
        case [ast.If(test, inner, [])] if _has_gradient(test, name):
            found = clamp(inner, name)
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
