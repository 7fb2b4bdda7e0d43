"""Which numbers an expression may be: literals, constants of modules and classes, defaults, and the limits of types."""

from __future__ import annotations

import ast
import sys

from ..calls.signatures import call_argument
from ..program.syntax import Module
from ..values.constants import constant
from ..values.resolver import Resolver
from ..values.values import Attribute, Display, External, Literal, Made, Option, Value

_LIMITS = {
    "float32": {
        "max": 3.4028234663852886e38,
        "min": -3.4028234663852886e38,
        "eps": 2.0**-23,
        "tiny": 2.0**-126,
        "smallest_normal": 2.0**-126,
    },
    "float64": {
        "max": sys.float_info.max,
        "min": -sys.float_info.max,
        "eps": sys.float_info.epsilon,
        "tiny": sys.float_info.min,
        "smallest_normal": sys.float_info.min,
    },
}
_TYPES = {
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
}
_CONVERSIONS = frozenset({"builtins.float", "builtins.int", "torch.tensor", "torch.as_tensor"})
_MOST_STEPS = 6


def possible_numbers(
    resolver: Resolver, node: ast.expr, module: Module, steps: int = _MOST_STEPS
) -> frozenset[float]:
    """The numbers that ``node`` may be, as far as they are written out; ``torch.tensor`` of one counts, too."""
    number = constant(node)
    if number is not None:
        return frozenset([number])
    if steps == 0:
        return frozenset()
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return frozenset(-n for n in possible_numbers(resolver, operand, module, steps - 1))
        case ast.BinOp(left, operator, right):
            firsts = possible_numbers(resolver, left, module, steps - 1)
            seconds = possible_numbers(resolver, right, module, steps - 1) if firsts else ()
            results = (
                constant(ast.BinOp(ast.Constant(a), operator, ast.Constant(b)))
                for a in firsts
                for b in seconds
            )
            return frozenset(n for n in results if n is not None)
        case ast.Call(args=[given, *_]) if resolver.names(node.func, module) & _CONVERSIONS:
            return possible_numbers(resolver, given, module, steps - 1)
        case ast.Name() | ast.Attribute() | ast.IfExp():
            return frozenset(
                number
                for value in resolver.values(node, module)
                for number in _numbers(resolver, value, steps - 1)
            )
        case _:
            return frozenset()


def _numbers(resolver: Resolver, value: Value, steps: int) -> frozenset[float]:
    match value:
        case Literal(node=node, module=module) | Display(node=node, module=module):
            return possible_numbers(resolver, node, module, steps)
        case Option(default=ast.expr() as default, module=module):
            return possible_numbers(resolver, default, module, steps)
        case Made(call, module, External(name)) if name in _CONVERSIONS and call.args:
            return possible_numbers(resolver, call.args[0], module, steps)
        case External(name) if name in _NAMED:
            return frozenset([_NAMED[name]])
        case Attribute(Made(call, module, External("torch.finfo" | "numpy.finfo" as of)), limit):
            kind = _type(resolver, call, module, of)
            found = _LIMITS[kind].get(limit) if kind is not None else None
            return frozenset([found]) if found is not None else frozenset()
        case _:
            return frozenset()


def _type(resolver: Resolver, call: ast.Call, module: Module, finfo: str) -> str | None:
    """The type that the ``finfo`` made by ``call`` is about; None for that of a tensor."""
    given = call_argument(call, "type", 0) or call_argument(call, "dtype")
    if given is None:
        return "float32" if finfo == "torch.finfo" else None
    kinds = {_TYPES.get(name) for name in resolver.names(given, module)}
    return kinds.pop() if len(kinds) == 1 else None
