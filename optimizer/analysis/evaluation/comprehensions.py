"""Evaluations that are written as a comprehension: ``sum(correct(model(x), y) for x, y in loader)``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..calls.reach import reached_nodes
from ..facts import Fact, Model
from ..loading.iterations import Iteration
from ..networks.forward_code import networks_run
from ..values.resolver import Resolver

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, eq=False)
class EvaluatingComprehension(Fact):
    """A comprehension that goes over loaders and runs ``networks`` on their batches."""

    networks: tuple[Model, ...]


def find_evaluating_comprehensions(
    resolver: Resolver, iterations: Iterable[Iteration]
) -> Iterator[EvaluatingComprehension]:
    """Those among ``iterations``, which are all passes over loaders."""
    for iteration in iterations:
        if isinstance(iteration.node, _COMPREHENSIONS):
            reached = reached_nodes(resolver, [iteration.node], iteration.module)
            networks = networks_run(resolver, reached)
            if networks:
                yield EvaluatingComprehension(iteration.module, iteration.node, networks)
