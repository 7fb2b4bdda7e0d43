"""Whether gradients come to a network in the turns that ``DistributedDataParallel`` takes them in.

It waits for the gradient of each parameter once from a forward pass of its network on. What a second backward pass brings, with no
forward pass of the network in between, is not exchanged, and nothing says so: the gradients of the second of two losses of one forward pass,
say, each with a backward pass of its own. So where there are several, all ways from their losses back to the network have to be seen.

Source: ``Reducer::prepare_for_backward``, https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ..autograd.gradients import Gradients
from ..calls.reach import reached_nodes
from ..networks.models import models_in
from ..networks.networks import Networks
from ..program.statements import are_alternatives
from ..program.syntax import Module
from ..program.trees import position, walk
from ..training.gradient_penalties import takes_gradients
from ..training.steps import Backward, StepCode
from ..values.dataflow import Flow, own_nodes
from ..values.resolver import Resolver
from .kept_results import keeps_nothing
from .trained_network import TrainedNetwork

_ASKED = frozenset({"train", "eval", "zero_grad", "training", "requires_grad_", "to", "cuda"})
"""What of a network brings no gradients to it."""


def backward_out_of_turn(
    resolver: Resolver, step: StepCode, network: TrainedNetwork
) -> Backward | None:
    """A backward pass of ``step`` that may bring the second gradients to ``network`` since that ran."""
    turns = _Turns(resolver, step, network)
    several = len(step.backwards) > 1
    reaching: list[Backward] = []
    for backward in step.backwards:
        found = turns.behind(backward)
        if several and not found.is_clear:
            return backward
        if not found.forwards:
            continue
        earlier = [
            before.statement
            for before in reaching
            if not are_alternatives(before.node, backward.node, step.module)
        ]
        loops = turns.loops(backward.statement)
        for forward in found.forwards:
            is_spent = any(position(forward) <= position(before) for before in earlier)
            if is_spent or not loops <= turns.loops(forward):
                return backward
        reaching.append(backward)
    return None


def penalty_alone(resolver: Resolver, step: StepCode, network: TrainedNetwork) -> Backward | None:
    """A backward pass of ``step`` to ``network`` from a penalty on its gradients alone, on which its last bias, say, has no influence."""
    turns = _Turns(resolver, step, network)
    if not turns.ask_for_gradients:
        return None
    for backward in step.backwards:
        if turns.behind(backward).forwards and not turns.runs_beside_gradients(backward):
            return backward
    return None


@dataclass
class _Behind:
    """The statements that run the network and through which gradients come to it; ``is_clear`` where there are no others."""

    forwards: set[ast.stmt]
    is_clear: bool = True


class _Turns:
    def __init__(self, resolver: Resolver, step: StepCode, network: TrainedNetwork) -> None:
        self._resolver, self._step, self._network = resolver, step, network
        self._forwards = {forward.node for forward in network.forwards}
        self._flow = Flow(step.module, tuple(step.body))
        self._gradients = Gradients(resolver, Networks(resolver))

    def loops(self, statement: ast.stmt) -> set[ast.stmt]:
        """The loops within the step around ``statement``."""
        around = self._step.module.loops(statement)
        return {loop for loop in around if loop in self._flow.statements}

    @cached_property
    def ask_for_gradients(self) -> bool:
        """Whether ``torch.autograd.grad`` is called in the step."""
        return any(
            self._asks(each.node, each.module)
            for each in reached_nodes(self._resolver, self._flow.statements, self._step.module)
        )

    def runs_beside_gradients(self, backward: Backward) -> bool:
        """Whether gradients of ``backward`` come to the network otherwise than through gradients that the step asks for."""
        ways = self._ways_back(backward, self._gives_gradients_alone)
        return any(self._runs_network(carrying) for carrying, _ in ways)

    def _gives_gradients_alone(self, node: ast.expr) -> bool:
        """Whether all that ``node`` gives are gradients of the network, or something made of them."""
        if not isinstance(node, ast.Call):
            return False
        module = self._step.module
        if self._asks(node, module):
            return True
        inside = list(reached_nodes(self._resolver, [node], module))
        inside = [each for each in inside if not each.direct]
        asking = {
            each.module.function(each.node) for each in inside if self._asks(each.node, each.module)
        }
        forwards = [each for each in inside if each.node in self._forwards]
        if not asking or len(forwards) > 1:
            return False
        return all(each.module.function(each.node) in asking for each in forwards)

    def _asks(self, node: ast.AST, module: Module) -> bool:
        return takes_gradients(self._resolver, node, module)

    def behind(self, backward: Backward) -> _Behind:
        """How gradients of ``backward`` come to the network."""
        found = _Behind(set(), not self._keeps_results)
        for carrying, at in self._ways_back(backward):
            if self._runs_network(carrying):
                found.forwards.add(at)
            if any(self._is_unclear(each, at) for each in carrying):
                found.is_clear = False
        return found

    def _ways_back(
        self, backward: Backward, leaves_out: Callable[[ast.expr], bool] = lambda _: False
    ) -> Iterator[tuple[list[ast.AST], ast.stmt]]:
        """What gradients of ``backward`` come to, statement by statement: nothing behind what ``leaves_out``."""
        seen: set[ast.stmt] = set()
        pending: list[tuple[ast.AST, ast.stmt]] = [(backward.loss, backward.statement)]
        while pending:
            node, at = pending.pop()
            carrying = list(self._carrying(own_nodes(node), leaves_out))
            yield carrying, at
            for source in self._flow.sources_of(node, carrying, at):
                if source not in seen:
                    seen.add(source)
                    pending.append((source, source))

    @cached_property
    def _keeps_results(self) -> bool:
        """Whether a function that runs the network in the step may keep what it gives, in an object or a list."""
        module = self._step.module
        for statement in self._flow.statements:
            if not isinstance(statement, ast.Expr):
                continue
            for reached in reached_nodes(self._resolver, own_nodes(statement), module):
                if reached.node in self._forwards and not reached.direct:
                    function = reached.module.function(reached.node)
                    if function is None or not keeps_nothing(
                        self._resolver, function, reached.module
                    ):
                        return True
        return False

    def _is_unclear(self, node: ast.AST, at: ast.stmt) -> bool:
        """Whether ``node`` may hold a graph that the step has not made in sight, or has some of the network itself."""
        module = self._step.module
        if isinstance(node, ast.Call):
            reached = reached_nodes(self._resolver, [node], module)
            return any(self._has_part(r.node, r.module) for r in reached if not r.direct)
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            return False
        parent = module.parents[node]
        if isinstance(parent, ast.Attribute):
            return False
        if isinstance(node, ast.Attribute) and self._is_of_network(node.value, module):
            return self._has_part(node, module)
        if isinstance(parent, ast.Call) and parent.func is node:
            return False  # what it is given is looked at by itself
        return not any(True for _ in self._flow.sources_of(node, [node], at))

    def _has_part(self, node: ast.AST, module: Module) -> bool:
        """Whether ``node`` is something of the network that gradients come to: a weight, a layer, a method of its own."""
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            return False
        return node.attr not in _ASKED and self._is_of_network(node.value, module)

    def _is_of_network(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is the network or a part of it: ``netD``, ``netD[0]``."""
        while True:
            models = models_in(self._resolver, self._resolver.values(node, module))
            if any(model.node in self._network.made for model in models):
                return True
            if not isinstance(node, ast.Attribute | ast.Subscript):
                return False
            node = node.value

    def _carrying(
        self, nodes: Iterable[ast.AST], leaves_out: Callable[[ast.expr], bool]
    ) -> Iterator[ast.AST]:
        """Those of ``nodes`` that may hold a graph: nothing within ``fake.detach()``, or within what ``leaves_out``."""
        cut: set[ast.AST] = set()
        for node in nodes:
            if node in cut:
                continue
            if isinstance(node, ast.expr) and (self._is_free(node) or leaves_out(node)):
                cut.update(walk(node))
                continue
            yield node

    def _is_free(self, node: ast.expr) -> bool:
        module = self._step.module
        is_stored = not isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load)
        if is_stored or self._has_part(node, module):
            return False  # a layer or a method is no tensor, but gives one
        return self._gradients.free(node, module)

    def _runs_network(self, nodes: Iterable[ast.AST]) -> bool:
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        if not self._forwards.isdisjoint(calls):
            return True
        reached = reached_nodes(self._resolver, calls, self._step.module)
        return any(each.node in self._forwards for each in reached)
