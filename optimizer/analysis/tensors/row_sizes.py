"""How many numbers a row of a tensor has, where the script says so."""

from __future__ import annotations

import ast
import math

from ..calls.signatures import call_argument
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import SLICE, Display, Element, External, Made, Value, whole_number

_ONE_BY_ONE = frozenset(
    {f"torch.{name}" for name in "randn rand zeros ones empty".split()}
    | {"numpy.random.randn", "numpy.random.rand"}
)
"""Functions that may take their sizes as so many arguments."""
_AT_ONCE = {
    "torch.full": 0,
    "torch.randint": -1,
    "torch.normal": 2,
    "numpy.zeros": 0,
    "numpy.ones": 0,
    "numpy.empty": 0,
    "numpy.full": 0,
    "numpy.random.random": 0,
    "numpy.random.randint": 2,
    "numpy.random.uniform": 2,
    "numpy.random.normal": 2,
}
"""Functions that take all sizes in one argument, and its position."""
_TAKEN_OVER = frozenset(
    f"torch.{name}" for name in ("tensor", "as_tensor", "from_numpy", "Tensor", "FloatTensor")
)
_SAME_SIZE = frozenset(
    "float double half bfloat16 long int short bool type to astype clone copy contiguous detach cpu cuda clamp abs "
    "uniform_ normal_ random_".split()
)
_DEEPEST = 6


def row_numbers(resolver: Resolver, tensor: ast.expr, module: Module, depth: int = 0) -> int:
    """The numbers in ``tensor[0]``, options being their defaults; 0 where the script does not tell.

    Where ``tensor`` may be one of several, those of the largest.
    """
    if isinstance(tensor, ast.Starred) or depth > _DEEPEST:
        return 0
    values = resolver.values(tensor, module)
    return max((_of_value(resolver, value, depth + 1) for value in values), default=0)


def _of_value(resolver: Resolver, value: Value, depth: int) -> int:
    match value:
        case Made(call, module, External(name)):
            return _of_call(resolver, call, module, name, depth)
        case Element(of=whole, path=path) if set(path) == {SLICE}:
            return _of_value(resolver, whole, depth)
        case Display(ast.BinOp(left=left, right=right), module):
            return max(row_numbers(resolver, side, module, depth) for side in (left, right))
        case Display(ast.Call(func=ast.Attribute(value=receiver, attr=method)), module):
            return row_numbers(resolver, receiver, module, depth) if method in _SAME_SIZE else 0
        case _:
            return 0


def _of_call(resolver: Resolver, call: ast.Call, module: Module, name: str, depth: int) -> int:
    while name.rpartition(".")[2] in _SAME_SIZE:
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(receiver, ast.Call):
            return 0
        name, call = name.rpartition(".")[0], receiver
    if name in _TAKEN_OVER and len(call.args) == 1:
        return row_numbers(resolver, call.args[0], module, depth)
    sizes = _sizes(resolver, call, module, name)
    known = [whole_number(resolver.values(size, module)) for size in sizes[1:]]
    return math.prod(n for n in known if n is not None) if known and None not in known else 0


def _sizes(resolver: Resolver, call: ast.Call, module: Module, name: str) -> list[ast.expr]:
    if name in _ONE_BY_ONE and len(call.args) > 1:
        return call.args
    position = 0 if name in _ONE_BY_ONE else _AT_ONCE.get(name)
    if position is None:
        return []
    if position < 0:
        position += len(call.args)
    together = call_argument(call, "size", position)
    values = list(resolver.values(together, module)) if together is not None else []
    match values:
        case [Display(ast.Tuple(elts=sizes) | ast.List(elts=sizes))]:
            return sizes
        case _:
            return []
