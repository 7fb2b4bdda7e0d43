"""Which optimizers of a script train beside each other, not one instead of the other."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import combinations

from ..calls.reach import never_runs
from ..facts import Optimizer
from ..program.statements import are_alternatives
from ..program.syntax import FunctionNode, Module
from ..values.resolver import Resolver


def rivals(
    resolver: Resolver, optimizers: Iterable[Optimizer]
) -> Iterator[tuple[Optimizer, Optimizer]]:
    """The pairs of ``optimizers`` that may train beside each other.

    Not one that takes the place of the other, nor where one is left over or the script chooses one of both.
    """
    live = [each for each in optimizers if not never_runs(resolver, each.node, each.module)]
    for one, other in combinations(live, 2):
        is_made_anew = (target := _target(one)) is not None and target == _target(other)
        if is_made_anew:
            continue
        if one.module is not other.module or not (
            are_alternatives(one.node, other.node, one.module)
            or _is_chosen_from(one.node, other.node, one.module)
        ):
            yield one, other


def _target(optimizer: Optimizer) -> tuple[Module, FunctionNode | None, str] | None:
    """The variable or attribute that alone is assigned ``optimizer``, and where it is."""
    match optimizer.module.statement(optimizer.node):
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
            if value is optimizer.node:
                function = optimizer.module.function(optimizer.node)
                return optimizer.module, function, ast.unparse(target)
        case _:
            pass
    return None


def _is_chosen_from(one: ast.Call, other: ast.Call, module: Module) -> bool:
    """Whether one of both is taken by its key: ``{"adam": Adam(..), "sgd": SGD(..)}[name]``."""
    display = module.parents[one]
    return (
        isinstance(display, ast.Dict)
        and display is module.parents[other]
        and isinstance(module.parents[display], ast.Subscript)
    )
