"""Whether gradients come to a network in the turns that ``DistributedDataParallel`` takes them in.

It waits for the gradient of each parameter once from a forward pass of its network on. A second backward pass to the same network, with no
forward pass of that in between, ends in an error ("marked as ready only once"): of two losses of one forward pass, say, each
with a backward pass of its own.

Source: ``Reducer::prepare_for_backward``, https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence

from ..autograd.gradients import Gradients
from ..calls.reach import reached_nodes
from ..facts import CallFact
from ..networks.networks import Networks
from ..program.statements import are_alternatives
from ..program.trees import position, walk
from ..training.steps import Backward, StepCode
from ..values.dataflow import Flow, own_nodes
from ..values.resolver import Resolver


def backward_out_of_turn(
    resolver: Resolver, step: StepCode, forwards: Sequence[CallFact]
) -> Backward | None:
    """A backward pass of ``step`` to the network of ``forwards`` that may be its second one since that ran."""
    turns = _Turns(resolver, step, forwards)
    reaching: list[tuple[Backward, set[ast.stmt]]] = []
    for backward in step.backwards:
        through = turns.forwards_behind(backward)
        if not through:
            continue
        earlier = [
            before.statement
            for before, _ in reaching
            if not are_alternatives(before.node, backward.node, step.module)
        ]
        loops = turns.loops(backward.statement)
        for forward in through:
            is_spent = any(position(forward) <= position(before) for before in earlier)
            if is_spent or not loops <= turns.loops(forward):
                return backward
        reaching.append((backward, through))
    return None


class _Turns:
    def __init__(self, resolver: Resolver, step: StepCode, forwards: Collection[CallFact]) -> None:
        self._resolver, self._step = resolver, step
        self._forwards = {forward.node for forward in forwards}
        self._flow = Flow(step.module, tuple(step.body))
        self._gradients = Gradients(resolver, Networks(resolver))

    def loops(self, statement: ast.stmt) -> set[ast.stmt]:
        """The loops within the step around ``statement``."""
        around = self._step.module.loops(statement)
        return {loop for loop in around if loop in self._flow.statements}

    def forwards_behind(self, backward: Backward) -> set[ast.stmt]:
        """The statements that run the network and through which gradients of ``backward`` come to it."""
        found: set[ast.stmt] = set()
        seen: set[ast.stmt] = set()
        pending: list[tuple[ast.AST, ast.stmt]] = [(backward.loss, backward.statement)]
        while pending:
            node, at = pending.pop()
            carrying = list(self._carrying(own_nodes(node)))
            if self._runs_network(carrying):
                found.add(at)
            for source in self._flow.sources_of(node, carrying, at):
                if source not in seen:
                    seen.add(source)
                    pending.append((source, source))
        return found

    def _carrying(self, nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
        """Those of ``nodes`` that may hold a graph: nothing within ``fake.detach()``."""
        cut: set[ast.AST] = set()
        for node in nodes:
            if node in cut:
                continue
            if isinstance(node, ast.expr) and self._is_free(node):
                cut.update(walk(node))
                continue
            yield node

    def _is_free(self, node: ast.expr) -> bool:
        is_stored = not isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load)
        return not is_stored and self._gradients.free(node, self._step.module)

    def _runs_network(self, nodes: Iterable[ast.AST]) -> bool:
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        if not self._forwards.isdisjoint(calls):
            return True
        reached = reached_nodes(self._resolver, calls, self._step.module)
        return any(each.node in self._forwards for each in reached)
