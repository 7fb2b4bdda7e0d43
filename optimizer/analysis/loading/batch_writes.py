"""What may write to the memory of a batch: ``x[0] = 1``, ``x += 1``, ``x.zero_()``, ``relu(x, inplace=True)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..facts import DataLoader, Fact
from ..program.syntax import Module
from ..tensors.fresh_results import FreshResults
from ..values.composition import composed_of
from ..values.resolver import Resolver
from ..values.values import External, Made, Value
from .batches import BatchTrace, Parts

_WRITES_ARGUMENT = frozenset(
    {"numpy.copyto", "numpy.put", "numpy.random.shuffle", "random.shuffle", "numpy.fill_diagonal"}
)


@dataclass(frozen=True, eq=False)
class BatchWrite(Fact):
    """Code that writes to ``target``, which may be ``parts`` of batches, in place."""

    target: ast.expr
    parts: Parts


def find_batch_writes(
    resolver: Resolver, loaders: tuple[DataLoader, ...]
) -> tuple[BatchWrite, ...]:
    """The code that may write to a batch, wherever it lies, in source order per module."""
    trace, fresh = BatchTrace(resolver, loaders), FreshResults(resolver)
    return tuple(
        BatchWrite(module, node, target, parts)
        for module in resolver.project.modules
        for node in module.nodes
        for target in _written(resolver, fresh, node, module)
        for parts in (trace.parts(target, module),)
        if any(part is not None for part in parts)
    )


def _written(
    resolver: Resolver, fresh: FreshResults, node: ast.AST, module: Module
) -> Iterator[ast.expr]:
    """The tensors that ``node`` writes to in place."""
    match node:
        case ast.Subscript(ctx=ast.Store()):
            yield node.value
        case ast.AugAssign(target=target):
            yield target
        case ast.Call():
            yield from _written_by_call(resolver, fresh, node, module)
        case _:
            pass


def _written_by_call(
    resolver: Resolver, fresh: FreshResults, call: ast.Call, module: Module
) -> Iterator[ast.expr]:
    out = call_argument(call, "out")
    if out is not None:
        yield out
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place and isinstance(call.func, ast.Attribute):
        yield call.func.value
    names = resolver.names(call.func, module)
    if in_place or names & _WRITES_ARGUMENT or _works_in_place(resolver, fresh, call, module):
        yield from call.args[:1]


def _works_in_place(
    resolver: Resolver, fresh: FreshResults, call: ast.Call, module: Module
) -> bool:
    """Whether ``call`` may write to its argument: ``relu(x, inplace=True)``, a module that was made so."""
    values = resolver.values(call.func, module)
    made = composed_of(resolver, (v for value in values for v in _given_it(resolver, fresh, value)))
    calls = [call, *(value.call for value in made if isinstance(value, Made))]
    said = [call_argument(each, "inplace") for each in calls]
    return any(s is not None and not _is_false(s) for s in said)


def _given_it(
    resolver: Resolver, fresh: FreshResults, layer: Value, within: frozenset[Value] = frozenset()
) -> list[Value]:
    """What is given the argument of ``layer`` itself: of layers in a row those up to the first that makes a new tensor of it.

    ``within`` are the rows it is part of: ``net = Sequential(net, layer)`` leads back to itself.
    """
    match layer:
        case Made(ast.Call(args=layers, keywords=[]), module, External("torch.nn.Sequential")) if (
            layers
            and layer not in within
            and not any(isinstance(each, ast.Starred) for each in layers)
        ):
            found: list[Value] = []
            for each in layers:
                inner = [
                    given
                    for value in resolver.values(each, module)
                    for given in _given_it(resolver, fresh, value, within | {layer})
                ]
                found += inner
                if fresh.values_objection(inner) is None:
                    break
            return found
        case _:
            return [layer]


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value
