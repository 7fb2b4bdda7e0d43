"""What a value is composed of: the elements of displays and the arguments of the calls that made it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .containers import added_to_list
from .resolver import Resolver
from .values import Display, Made, Value


def composed_of(resolver: Resolver, values: Iterable[Value]) -> Iterator[Value]:
    """``values`` and, inside out, everything they were given: ``Compose([Resize(32), flip])`` gives all three.

    What is put into a list by the name or attribute it was made under counts, too: ``steps = []``, then ``steps.append(flip)``.
    """
    seen: set[Value] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        if isinstance(value, Made):
            for argument in call_arguments(value.call):
                given = argument.value if isinstance(argument, ast.Starred) else argument
                pending += resolver.values(given, value.module)
        elif isinstance(value, Display):
            for part in _written_parts(value.node):
                pending += resolver.values(part, value.module)
            for _, part, module in added_to_list(resolver, value):
                pending += resolver.values(part, module)


def call_arguments(call: ast.Call) -> list[ast.expr]:
    """The arguments of ``call``, positional before keyword."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _written_parts(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return parts
        case ast.Dict(values=parts):
            return parts
        case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.DictComp(value=part):
            return [part]
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case _:
            return []
