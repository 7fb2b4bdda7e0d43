"""The statements that run a network and compute a loss from what it returns."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..calls.reach import reached_nodes
from ..networks.forward_code import weights_read
from ..program.syntax import Module
from ..program.trees import position
from ..values.dataflow import Flow, dotted, own_nodes
from ..values.resolver import Resolver
from .loops import backward_calls, forward_calls, optimizer_steps


@dataclass(frozen=True, eq=False)
class Region:
    """Sibling statements from ``first`` to ``last`` that run a network and compute a loss from what it returns."""

    module: Module
    first: ast.stmt
    last: ast.stmt

    @property
    def statements(self) -> list[ast.stmt]:
        block = self.module.block(self.first)
        return block[block.index(self.first) : block.index(self.last) + 1]


def runs_forward(resolver: Resolver, nodes: Iterable[ast.AST], module: Module) -> bool:
    """Whether ``nodes`` run a network, themselves or in a function they call."""
    return bool(forward_calls(resolver, reached_nodes(resolver, nodes, module)))


def forward_statements(
    resolver: Resolver, flow: Flow, expression: ast.AST, at: ast.stmt
) -> set[ast.stmt]:
    """Of the statements behind the gradient of ``expression``, those that run a network or compute with what one returned.

    Not those that label the batch by an evaluation of the very network that is trained.
    """
    behind = flow.differentiable_behind(expression, at)
    found = {s for s in behind if runs_forward(resolver, own_nodes(s), flow.module)}
    found -= _evaluations(resolver, found, flow.module)
    pending = list(behind - found)
    while True:
        dependent = [s for s in pending if not found.isdisjoint(flow.sources(s, s))]
        if not dependent:
            return found
        found.update(dependent)
        pending = [s for s in pending if s not in found]


def _evaluations(resolver: Resolver, running: set[ast.stmt], module: Module) -> set[ast.stmt]:
    """Of ``running``, what runs networks without gradients alone, in functions that it calls, which others run with them."""
    weights = {s: _weights(resolver, s, module) for s in running}
    if not any(without for without, _ in weights.values()):
        return set()
    found: set[ast.stmt] = set()
    for statement, (without, recorded) in weights.items():
        others = {w for s, (_, own) in weights.items() if s is not statement for w in own}
        if without & others and not recorded & others:
            found.add(statement)
    return found


def _weights(
    resolver: Resolver, statement: ast.stmt, module: Module
) -> tuple[frozenset[ast.Call], frozenset[ast.Call]]:
    """The networks that ``statement`` runs without gradients, in functions that it calls, and those that it runs with them."""
    reached = list(reached_nodes(resolver, own_nodes(statement), module))
    suspended = {
        inner.node
        for each in reached
        if suspends_gradients(resolver, each.node, each.module)
        for inner in reached_nodes(resolver, suspended_code(each.node), each.module)
    }
    return (
        weights_read(resolver, [r for r in reached if r.node in suspended]),
        weights_read(resolver, [r for r in reached if r.node not in suspended]),
    )


def suspended_code(node: ast.AST) -> list[ast.AST]:
    """What runs without gradients in ``node``, a ``with`` statement or a call: its body, the call itself."""
    return [*node.body] if isinstance(node, ast.With) else [node]


def loss_regions(
    resolver: Resolver, flow: Flow, losses: Iterable[tuple[ast.expr, ast.stmt]]
) -> tuple[Region, ...]:
    """The regions of ``flow`` behind ``losses``, each with the statement that backpropagates it or hands it on, in source order."""
    barriers = _barriers(resolver, flow)
    members = {
        member
        for loss, statement in losses
        for member in forward_statements(resolver, flow, loss, statement)
    }
    return tuple(_regions(resolver, flow, members - barriers, barriers))


def _barriers(resolver: Resolver, flow: Flow) -> set[ast.stmt]:
    """The statements that backpropagate or step an optimizer, directly or inside, and those around them."""
    found: set[ast.stmt] = set()
    for statement in flow.statements:
        reached = list(reached_nodes(resolver, own_nodes(statement), flow.module))
        if backward_calls(reached) or optimizer_steps(resolver, reached):
            found.add(statement)
            for ancestor in flow.module.ancestors(statement):
                if isinstance(ancestor, ast.stmt):
                    found.add(ancestor)
    return found


def _regions(
    resolver: Resolver, flow: Flow, members: set[ast.stmt], barriers: set[ast.stmt]
) -> Iterator[Region]:
    """Runs of members within one block, with no barrier between them; what needs no gradients is apart."""
    module = flow.module
    lifted = {_lifted(flow, member, barriers) for member in members}
    runs: list[list[ast.stmt]] = []
    for statement in sorted(lifted, key=position):
        block = module.block(statement)
        last = runs[-1][-1] if runs else None
        if last is not None and last in block:
            following = block[block.index(last) + 1 : block.index(statement) + 1]
            if barriers.isdisjoint(following):
                for each in following:
                    if _apart(resolver, module, runs[-1], each):
                        runs.append([])
                    runs[-1].append(each)
                continue
        runs.append([statement])
    for run in runs:
        if not all(map(_hands_on, run)):
            yield Region(module, run[0], run[-1])


def _hands_on(statement: ast.stmt) -> bool:
    """Whether ``statement`` computes nothing: ``delta = delta.detach()``."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    match value:
        case ast.Call(func=ast.Attribute(attr="detach", value=handed_on)):
            return dotted(handed_on) is not None
        case _:
            return value is not None and dotted(value) is not None


def _apart(resolver: Resolver, module: Module, run: list[ast.stmt], statement: ast.stmt) -> bool:
    """Whether a network runs without gradients in ``run`` and then with them in ``statement``.

    In one autocast region the second pass would get the weights the first one cast, which have no history
    (https://github.com/pytorch/pytorch/issues/112583, up to PyTorch 2.10). The other way round costs nothing.
    """
    suspended = [suspends_gradients(resolver, s, module) for s in (*run, statement)]
    if suspended[-1] or not any(suspended):
        return False
    networks = [
        weights_read(resolver, reached_nodes(resolver, [s], module)) for s in (*run, statement)
    ]
    return any(
        earlier & networks[-1]
        for earlier, is_suspended in zip(networks, suspended[:-1], strict=False)
        if is_suspended
    )


def suspends_gradients(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` is a ``with torch.no_grad():`` or a call of a function decorated that way."""
    contexts: list[tuple[ast.expr, Module]] = []
    if isinstance(node, ast.With):
        contexts = [(item.context_expr, module) for item in node.items]
    elif isinstance(node, ast.Call):
        for callee in resolver.callees(node, module):
            decorators = getattr(callee.node, "decorator_list", [])
            contexts += [(decorator, callee.module) for decorator in decorators]
    return any(_is_no_grad(resolver, context, owner) for context, owner in contexts)


def _is_no_grad(resolver: Resolver, context: ast.expr, module: Module) -> bool:
    function = context.func if isinstance(context, ast.Call) else context
    names = resolver.names(function, module)
    if names & {"torch.no_grad", "torch.inference_mode"}:
        return True
    arguments = context.args if isinstance(context, ast.Call) else []
    is_off = bool(arguments) and isinstance(arguments[0], ast.Constant) and not arguments[0].value
    return is_off and "torch.set_grad_enabled" in names


def _lifted(flow: Flow, statement: ast.stmt, barriers: set[ast.stmt]) -> ast.stmt:
    """The outermost statement of the body around ``statement`` that holds no barrier."""
    inside = set(flow.statements)
    for ancestor in flow.module.ancestors(statement):
        if not isinstance(ancestor, ast.stmt) or ancestor not in inside or ancestor in barriers:
            break
        statement = ancestor
    return statement
