"""Which numbers an expression may be: literals, constants of modules and classes, defaults, and the limits of types."""

from __future__ import annotations

import ast
import math
import sys
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..program.syntax import Module
from ..values.constants import constant
from ..values.resolver import Resolver
from ..values.values import Attribute, Display, External, Literal, Made, Option, Value

_LIMITS = {
    "float16": {"max": 65504.0, "eps": 2.0**-10, "tiny": 2.0**-14},
    "bfloat16": {"max": 3.3895313892515355e38, "eps": 2.0**-7, "tiny": 2.0**-126},
    "float32": {"max": 3.4028234663852886e38, "eps": 2.0**-23, "tiny": 2.0**-126},
    "float64": {
        "max": sys.float_info.max,
        "eps": sys.float_info.epsilon,
        "tiny": sys.float_info.min,
    },
}
for _limits in _LIMITS.values():
    _limits |= {"min": -_limits["max"], "smallest_normal": _limits["tiny"]}
_TYPES = {
    **dict.fromkeys(("torch.float16", "torch.half", "numpy.float16"), "float16"),
    "torch.bfloat16": "bfloat16",
    **dict.fromkeys(("torch.float32", "torch.float", "numpy.float32", "numpy.single"), "float32"),
    **dict.fromkeys(
        ("torch.float64", "torch.double", "numpy.float64", "numpy.double", "builtins.float"),
        "float64",
    ),
}
_NAMED = {
    "sys.maxsize": float(sys.maxsize),
    "sys.float_info.max": sys.float_info.max,
    "sys.float_info.min": sys.float_info.min,
    "sys.float_info.epsilon": sys.float_info.epsilon,
    **{f"{package}.pi": math.pi for package in ("math", "numpy", "torch")},
    **{f"{package}.e": math.e for package in ("math", "numpy", "torch")},
    "math.tau": math.tau,
}
_CONVERSIONS = frozenset({"builtins.float", "builtins.int", "torch.tensor", "torch.as_tensor"})
_MOST_STEPS = 6


@dataclass(frozen=True)
class _Numbers:
    """Numbers that an expression may be. ``all_known`` says that it can be no other, such as one given on the command line."""

    found: frozenset[float]
    all_known: bool


_NONE_KNOWN = _Numbers(frozenset(), False)


def possible_numbers(resolver: Resolver, node: ast.expr, module: Module) -> frozenset[float]:
    """The numbers that ``node`` may be, as far as they are written out; ``torch.tensor`` of one counts, too."""
    return _numbers(resolver, node, module, _MOST_STEPS).found


def known_numbers(resolver: Resolver, node: ast.expr, module: Module) -> frozenset[float]:
    """All numbers that ``node`` may be; none where it may be anything that is not written out."""
    numbers = _numbers(resolver, node, module, _MOST_STEPS)
    return numbers.found if numbers.all_known else frozenset()


def _numbers(resolver: Resolver, node: ast.expr, module: Module, steps: int) -> _Numbers:
    number = constant(node)
    if number is not None:
        return _Numbers(frozenset([number]), True)
    if steps == 0:
        return _NONE_KNOWN
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            negated = _numbers(resolver, operand, module, steps - 1)
            return _Numbers(frozenset(-n for n in negated.found), negated.all_known)
        case ast.BinOp(left, operator, right):
            first = _numbers(resolver, left, module, steps - 1)
            second = _numbers(resolver, right, module, steps - 1) if first.found else _NONE_KNOWN
            return _calculated(first, operator, second)
        case ast.Call(args=[given, *_]) if resolver.names(node.func, module) & _CONVERSIONS:
            return _numbers(resolver, given, module, steps - 1)
        case ast.Name() | ast.Attribute() | ast.IfExp() | ast.Subscript():
            values = resolver.values(node, module)
            return _joined([_of_value(resolver, value, steps - 1) for value in values])
        case _:
            return _NONE_KNOWN


def _calculated(first: _Numbers, operator: ast.operator, second: _Numbers) -> _Numbers:
    results = [
        constant(ast.BinOp(ast.Constant(a), operator, ast.Constant(b)))
        for a in first.found
        for b in second.found
    ]
    found = frozenset(n for n in results if n is not None)
    return _Numbers(found, first.all_known and second.all_known and None not in results)


def _joined(parts: list[_Numbers]) -> _Numbers:
    found = frozenset(number for part in parts for number in part.found)
    return _Numbers(found, bool(parts) and all(part.all_known for part in parts))


def _of_value(resolver: Resolver, value: Value, steps: int) -> _Numbers:
    match value:
        case Literal(node=node, module=module) | Display(node=node, module=module):
            return _numbers(resolver, node, module, steps)
        case Option(default=ast.expr() as default, module=module):
            return _Numbers(_numbers(resolver, default, module, steps).found, False)
        case Made(call, module, External(name)) if name in _CONVERSIONS and call.args:
            return _numbers(resolver, call.args[0], module, steps)
        case External(name) if name in _NAMED:
            return _Numbers(frozenset([_NAMED[name]]), True)
        case Attribute(Made(call, module, External("torch.finfo" | "numpy.finfo" as of)), limit):
            kind = _type(resolver, call, module, of)
            found = _LIMITS[kind].get(limit) if kind is not None else None
            return _Numbers(frozenset([found]), True) if found is not None else _NONE_KNOWN
        case _:
            return _NONE_KNOWN


def _type(resolver: Resolver, call: ast.Call, module: Module, finfo: str) -> str | None:
    """The type that the ``finfo`` made by ``call`` is about; None for that of a tensor."""
    given = call_argument(call, "type", 0) or call_argument(call, "dtype")
    if given is None:
        return "float32" if finfo == "torch.finfo" else None
    kinds = {_TYPES.get(name) for name in resolver.names(given, module)}
    return kinds.pop() if len(kinds) == 1 else None
