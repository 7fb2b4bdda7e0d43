"""How a network gets from where it is made to the forward pass of the training step."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..calls.reach import Reached
from ..calls.signatures import argument_for
from ..facts import CallFact, Fact
from ..obstacles import Obstacle
from ..program.scopes import Parameter
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..training.steps import StepCode
from ..values.resolver import Resolver

_WRAPPER_HAS = frozenset(
    {"train", "eval", "parameters", "zero_grad", "training", "to", "cuda", "requires_grad_"}
)
"""What a DistributedDataParallel answers as the network in it does."""


@dataclass(frozen=True, eq=False)
class Hop:
    """A function that is handed the network as ``parameter``; ``alone`` says that nothing else calls it."""

    function: FunctionNode
    module: Module
    parameter: str
    alone: bool


@dataclass(frozen=True, eq=False)
class NetworkFlow(Fact):
    """``node`` is the network as it is called where it is made: a variable, or an attribute of ``self``.

    ``uses`` are the expressions, all of that name, through which it gets to the forward passes, directly or into one of
    ``hops``.
    """

    node: ast.Name | ast.Attribute
    uses: tuple[ast.expr, ...]
    hops: tuple[Hop, ...]

    def uses_of_network_itself(self, resolver: Resolver) -> Iterator[Reached]:
        """Where a function on the way needs what only the network has, not what may be wrapped around it."""
        on_the_way = {(hop.function, hop.parameter) for hop in self.hops}
        for hop in self.hops:
            for node in walk(hop.function):
                if (
                    isinstance(node, ast.Name)
                    and node.id == hop.parameter
                    and isinstance(node.ctx, ast.Load)
                    and not _fits_wrapper(resolver, node, hop.module, on_the_way)
                ):
                    yield Reached(node, hop.module, hop.alone)


def network_flow(
    resolver: Resolver, step: StepCode, forwards: Sequence[CallFact]
) -> NetworkFlow | Obstacle:
    """The ways of the network from its one variable to ``forwards``."""
    found: NetworkFlow | None = None
    for forward in forwards:
        flow = _way_to(resolver, step, forward)
        if isinstance(flow, Obstacle):
            return flow
        if found is not None:
            if found.module is not flow.module or ast.dump(found.node) != ast.dump(flow.node):
                why = "the network comes by several names to where it is run"
                return Obstacle(forward.module, forward.node, why)
            known = {(hop.function, hop.parameter) for hop in found.hops}
            more = [hop for hop in flow.hops if (hop.function, hop.parameter) not in known]
            uses = (*dict.fromkeys((*found.uses, *flow.uses)),)
            flow = replace(found, uses=uses, hops=(*found.hops, *more))
        found = flow
    assert found is not None, "there is a forward pass"
    return found


def _way_to(resolver: Resolver, step: StepCode, forward: CallFact) -> NetworkFlow | Obstacle:
    expression, module = forward.network, forward.module
    reached = {r.node for r in step.nodes(resolver)}
    phase = step.loop.phase
    training = {call for call, _ in phase.calls} if phase is not None else set[ast.Call]()
    hops: list[Hop] = []
    while True:
        if not isinstance(expression, ast.Name):
            break
        found = module.scope(expression).lookup(expression.id)
        source = found[1][0].source if found and len(found[1]) == 1 else None
        if not isinstance(source, Parameter):
            break
        function = source.function
        if isinstance(function, ast.Lambda):
            break
        sites = resolver.call_sites(function)
        leading = (
            [site for site in sites if site.call in reached]
            or [site for site in sites if site.call in training]
            or list(sites)
        )
        if len(leading) != 1 or any(hop.function is function for hop in hops):
            why = f"`{function.name}` is not called in exactly one place of the training"
            return Obstacle(module, function, why)
        hops.insert(0, Hop(function, module, expression.id, len(sites) == 1))
        argument = argument_for(function, expression.id, leading[0].call, leading[0].bound)
        if argument is None or argument.given is None:
            return Obstacle(
                module, function, "the network is handed on in a way that is not followed"
            )
        expression, module = argument.given, leading[0].module
    if isinstance(expression, ast.Name) or (
        isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name)
    ):
        return NetworkFlow(module, expression, (expression,), tuple(hops))
    return Obstacle(module, expression, "the network that is trained has no variable")


def _fits_wrapper(
    resolver: Resolver,
    node: ast.Name,
    module: Module,
    on_the_way: set[tuple[FunctionNode, str]],
) -> bool:
    parent = module.parents[node]
    if isinstance(parent, ast.Call) and parent.func is node:
        return True
    if isinstance(parent, ast.Attribute):
        return parent.attr in _WRAPPER_HAS
    if isinstance(parent, ast.keyword):
        parent = module.parents[parent]
    if isinstance(parent, ast.Call):
        for callee in resolver.callees(parent, module):
            if isinstance(callee.node, ast.FunctionDef):
                for function, parameter in on_the_way:
                    if function is callee.node:
                        passed = argument_for(function, parameter, parent, callee.bound)
                        if passed is not None and passed.given is node:
                            return True
    return False
