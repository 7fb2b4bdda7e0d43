"""Between which whole numbers a size lies, with the options of a script at their defaults: ``args.hidden * 2 ** i``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from itertools import product
from math import prod
from typing import TypeAlias

from ..program.reaching import bindings_of
from ..program.scopes import Iterated
from ..program.syntax import Module
from ..values.option_settings import assigned_settings, option_field
from ..values.resolver import Resolver
from ..values.values import Attribute, Display, External, Literal, Made, Option, Value

Bounds: TypeAlias = tuple[int, int]
"""The least and the greatest."""

_DEEPEST = 12
_LARGEST_EXPONENT = 64
_PRODUCTS = frozenset({"numpy.prod", "math.prod"})
_SAME = frozenset({"builtins.int", "builtins.round", "builtins.float"})
_COUNTS = frozenset(
    {
        *("builtins.int", "builtins.len"),
        *("torch.cuda.device_count", "torch.distributed.get_world_size"),
    }
)
_CHOOSING: dict[str, Callable[[list[int]], int]] = {"builtins.min": min, "builtins.max": max}


def size_bounds(
    resolver: Resolver, node: ast.expr, module: Module, depth: int = 0
) -> Bounds | None:
    """What ``node`` lies between, both ends included; None where the script does not tell."""
    if depth > _DEEPEST:
        return None

    def again(part: ast.expr, at: Module = module) -> Bounds | None:
        return size_bounds(resolver, part, at, depth + 1)

    match node:
        case ast.BinOp():
            return _of_operation(resolver, node, module, depth + 1)
        case ast.UnaryOp(ast.USub(), ast.Constant(int() as number)):
            return -number, -number
        case ast.Call(func, [argument], []):
            names = resolver.names(func, module)
            if names and names <= _SAME:
                return again(argument)
            if names and names <= _PRODUCTS:
                return _product(resolver, argument, module, depth)
            if names == frozenset({"builtins.len"}):
                return _length(resolver, argument, module)
        case ast.Call(func, [_, _, *_] as arguments, []):
            names = resolver.names(func, module)
            if len(names) == 1 and (choose := _CHOOSING.get(next(iter(names)))) is not None:
                return _chosen(choose, [again(argument) for argument in arguments])
        case ast.Name() if (counted := _counted(resolver, node, module, depth)) is not None:
            return counted
        case _:
            pass
    values = resolver.values(node, module)
    return _spanned(_of_value(resolver, value, node, depth) for value in values)


def _of_operation(resolver: Resolver, node: ast.BinOp, module: Module, depth: int) -> Bounds | None:
    left = size_bounds(resolver, node.left, module, depth)
    right = size_bounds(resolver, node.right, module, depth)
    in_parts = isinstance(node.op, ast.FloorDiv) and _is_count(resolver, node.right, module)
    if in_parts and right is None and left is not None and left[0] >= 0:
        return 0, left[1]  # no more than all
    return _calculated(left, node.op, right)


def _is_count(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is a whole number by what makes it, be it not known which: ``int(os.environ["WORLD_SIZE"])``."""
    values = resolver.values(node, module)
    return bool(values) and all(
        isinstance(value, Made)
        and isinstance(value.maker, External)
        and value.maker.name in _COUNTS
        for value in values
    )


def _of_value(resolver: Resolver, value: Value, node: ast.expr, depth: int) -> Bounds | None:
    match value:
        case Literal(value=bool()):
            return None
        case Literal(value=int() as number):
            return number, number
        case Option(_, _, at, default):
            return _of_option(resolver, value, default, at, depth)
        case Attribute() if (field := option_field(resolver, value)) is not None:
            declared, at = field
            return _of_option(resolver, value, declared.value, at, depth)
        case Display(node=written, module=at) if written is not node:
            return size_bounds(resolver, written, at, depth + 1)
        case Made(call=call, module=at) if call is not node:
            return size_bounds(resolver, call, at, depth + 1)
        case _:
            return None


def _of_option(
    resolver: Resolver,
    option: Option | Attribute,
    default: ast.expr | None,
    module: Module,
    depth: int,
) -> Bounds | None:
    """Of one that has ``default``, unless the script assigns it something else: ``args.batch_size = 4 * args.envs``."""
    assigned = assigned_settings(resolver, option)
    if default is None or assigned is None:
        return None
    # What hands the option on to an attribute of its own name adds nothing: `model.batch_size = args.batch_size`.
    others = [(value, at) for value, at in assigned if [*resolver.values(value, at)] != [option]]
    given = [(default, module), *others]
    return _spanned(size_bounds(resolver, value, at, depth + 1) for value, at in given)


def _counted(resolver: Resolver, name: ast.Name, module: Module, depth: int) -> Bounds | None:
    """``i`` of ``for i in range(layers)``."""
    bindings = bindings_of(module, name)
    if len(bindings) != 1 or not isinstance(source := bindings[0].source, Iterated) or source.path:
        return None
    span = range_bounds(resolver, source.iterable, module, depth + 1)
    return None if span is None else (span[0], span[1] - 1)


def range_bounds(
    resolver: Resolver, iterable: ast.expr, module: Module, depth: int = 0
) -> Bounds | None:
    """The least start and the greatest stop of a ``range`` that counts up by one."""
    if not isinstance(iterable, ast.Call) or iterable.keywords or not 1 <= len(iterable.args) <= 2:
        return None
    if resolver.names(iterable.func, module) != frozenset({"builtins.range"}):
        return None
    ends = [size_bounds(resolver, end, module, depth + 1) for end in iterable.args]
    start, stop = ends if len(ends) > 1 else ((0, 0), *ends)
    return None if start is None or stop is None else (start[0], stop[1])


def _calculated(left: Bounds | None, operator: ast.operator, right: Bounds | None) -> Bounds | None:
    if left is None or right is None:
        return None
    match operator:
        case ast.Add():
            found = [a + b for a, b in product(left, right)]
        case ast.Sub():
            found = [a - b for a, b in product(left, right)]
        case ast.Mult():
            found = [a * b for a, b in product(left, right)]
        case ast.FloorDiv() | ast.Div() if right[0] > 0:
            found = [a // b for a, b in product(left, right)]
        case ast.Pow() if left[0] > 0 and 0 <= right[1] <= _LARGEST_EXPONENT:
            found = [a ** max(b, 0) for a, b in product(left, right)]
        case _:
            return None
    return min(found), max(found)


def _product(resolver: Resolver, shape: ast.expr, module: Module, depth: int) -> Bounds | None:
    """The product of the sizes in a shape that is written out."""
    values = list(resolver.values(shape, module))
    if len(values) != 1 or not isinstance(display := values[0], Display):
        return None
    if not isinstance(display.node, ast.Tuple | ast.List):
        return None
    sizes = [size_bounds(resolver, e, display.module, depth + 1) for e in display.node.elts]
    known = [size for size in sizes if size is not None and size[0] >= 0]
    if len(known) < len(sizes):
        return None
    return prod(low for low, _ in known), prod(high for _, high in known)


def _length(resolver: Resolver, listed: ast.expr, module: Module) -> Bounds | None:
    """How many a display that is written out has, or letters a text."""
    match list(resolver.values(listed, module)):
        case [Display(node=ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts))]:
            pass
        case [Display(node=ast.Dict(keys=parts))]:
            pass
        case [Literal(value=str() as parts)]:
            pass
        case _:
            return None
    if any(isinstance(part, ast.Starred) or part is None for part in parts):
        return None
    return len(parts), len(parts)


def _chosen(choose: Callable[[list[int]], int], given: list[Bounds | None]) -> Bounds | None:
    known = [bounds for bounds in given if bounds is not None]
    if len(known) < len(given):
        return None
    return choose([low for low, _ in known]), choose([high for _, high in known])


def _spanned(given: Iterable[Bounds | None]) -> Bounds | None:
    """From the least to the greatest of what it may be; the first that is not known ends it."""
    known: list[Bounds] = []
    for bounds in given:
        if bounds is None:
            return None
        known.append(bounds)
    if not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)
