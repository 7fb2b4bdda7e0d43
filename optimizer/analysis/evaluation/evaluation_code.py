"""The parts of evaluations that run a network and compute losses of what it returns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..autograd.grad_modes import suspended_around
from ..calls.reach import lexical_nodes
from ..facts import Loop, LoopKind
from ..networks.models import is_module_class
from ..program.statements import common_block
from ..program.trees import walk
from ..training.loss_regions import Region, runs_forward
from ..training.steps import EvaluationCode
from ..values.dataflow import Flow, own_nodes
from ..values.resolver import Resolver
from ..values.values import Class

_LOSS_NAME = re.compile(r"loss|criterion|cross_entropy|nll|bce|mse|objective", re.IGNORECASE)


def find_evaluation_code(resolver: Resolver, loops: tuple[Loop, ...]) -> tuple[EvaluationCode, ...]:
    """The evaluation loops that run a network themselves or through functions they call.

    Those over batches that the script cuts out itself are told by their losses, and by running without gradients.
    """
    found: list[EvaluationCode] = []
    over_batches = {loop.node for loop in loops if loop.kind is LoopKind.EVALUATION}
    for loop in loops:
        is_within = not over_batches.isdisjoint(loop.module.loops(loop.node))
        if loop.node in over_batches or (not is_within and _evaluates_own_batches(resolver, loop)):
            flow = Flow(loop.module, tuple(loop.node.body))
            regions = tuple(_evaluation_regions(resolver, flow))
            found.append(EvaluationCode(loop.module, loop.node, loop, regions))
    return tuple(found)


def _evaluates_own_batches(resolver: Resolver, loop: Loop) -> bool:
    """Whether each pass of ``loop``, which goes over no loader, runs a network without gradients and has a loss of it."""
    module = loop.module
    if loop.kind is not LoopKind.OTHER or not isinstance(loop.node, ast.For):
        return False
    if not loop.forwards or loop.optimizer_steps or _in_network(resolver, loop):
        return False
    calls = [call.node for call in loop.forwards if call.module is module]
    own = [call for call in calls if module.loops(call)[:1] == [loop.node]]
    if len(own) < len(loop.forwards) or all(map(_is_loss_call, own)):
        return False
    return _has_loss(loop) and all(suspended_around(resolver, call, module) for call in own)


def _in_network(resolver: Resolver, loop: Loop) -> bool:
    """Whether ``loop`` is part of a network's own code: it goes over layers, or time."""
    classes = (a for a in loop.module.ancestors(loop.node) if isinstance(a, ast.ClassDef))
    return any(is_module_class(resolver, Class(node, loop.module)) for node in classes)


def _has_loss(loop: Loop) -> bool:
    """Whether ``loop`` calls a loss, or gives what its network returned the name of one."""
    nodes = list(lexical_nodes(loop.node.body))
    forwards = {call.node for call in loop.forwards}
    return any(map(_is_loss_call, nodes)) or any(
        isinstance(node, ast.Assign)
        and not forwards.isdisjoint(walk(node.value))
        and any(isinstance(n, ast.Name) and _LOSS_NAME.search(n.id) for n in walk(node.targets[0]))
        for node in nodes
    )


def _evaluation_regions(resolver: Resolver, flow: Flow) -> Iterator[Region]:
    runs = {s for s in flow.statements if runs_forward(resolver, own_nodes(s), flow.module)}
    members = runs | {
        statement
        for statement in flow.statements
        if any(_is_loss_call(node) for node in own_nodes(statement))
        and not runs.isdisjoint(flow.differentiable_behind(statement, statement))
    }
    if members:
        block, held = common_block(flow.module, members)
        yield Region(flow.module, min(held, key=block.index), max(held, key=block.index))


def _is_loss_call(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return bool(_LOSS_NAME.search(name))
