"""Loops over steps that wait for the device all the same, whatever numbers of theirs could wait.

``predictions.append(y.cpu())`` copies to the host in every step, ``train(batch)`` prints its loss by itself. Nothing is
changed about them; somebody who looks for what makes a loop slow is told the first place where it waits.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping

from ..calls.reach import Reached, lexical_nodes, never_runs, reached_nodes
from ..calls.signatures import argument_for
from ..devices.host_tensors import is_made_on_host
from ..facts import Fact, Loop, LoopKind
from ..networks.models import is_module_class
from ..obstacles import Obstacle
from ..program.reaching import bindings_of
from ..program.scopes import Parameter
from ..program.syntax import FunctionNode, LoopNode, Module
from ..program.trees import walk
from ..tensors.tensor_kinds import TensorKind, TensorKinds
from ..values.resolver import Resolver
from ..values.values import Class, External, Function, Made, Value
from .device_reads import STEPS, DeviceRead, runs_rarely
from .device_waits import waits_at, why_waits


def untold_waits(
    resolver: Resolver,
    kinds: TensorKinds,
    loops: Mapping[LoopNode, Loop],
    reads: Iterable[DeviceRead],
    told: Collection[Loop],
) -> Iterator[tuple[Loop, Obstacle]]:
    """The outermost loops over steps that are not ``told`` of, each with the first place where it waits."""
    by_node: dict[ast.AST, DeviceRead] = {read.node: read for read in reads}
    for loop in loops.values():
        outer = [loops[node] for node in loop.module.loops(loop.node)]
        inner = [loops[n] for n in lexical_nodes(loop.node.body) if isinstance(n, LoopNode)]
        if not _is_over_steps(resolver, loops, loop) or any(o.kind in STEPS for o in outer):
            continue
        if any(each in told for each in [loop, *inner]):
            continue
        first = next(_waits_of(resolver, kinds, loops, by_node, loop), None)
        if first is not None and not never_runs(resolver, loop.node, loop.module):
            yield loop, _told(resolver, *first)


def wait_beside(
    resolver: Resolver,
    kinds: TensorKinds,
    reads: Iterable[DeviceRead],
    loop: Loop,
    deferred: Iterable[DeviceRead],
) -> Obstacle | None:
    """The first place where ``loop`` goes on waiting in every step when the reads that are ``deferred`` no longer do."""
    gone = {node for read in deferred for each in (read, read.source) for node in walk(each.node)}
    by_node: dict[ast.AST, DeviceRead] = {read.node: read for read in reads}
    waits = _waits_of(resolver, kinds, {}, by_node, loop)  # in the loops of its functions, too
    first = next(((wait, call) for wait, call in waits if wait.node not in gone), None)
    return _told(resolver, *first) if first is not None else None


def _told(resolver: Resolver, wait: Fact, call: Fact | None) -> Obstacle:
    why = why_waits(resolver, wait)
    if call is not None:
        why += f", reached from {call.place}"
    return Obstacle(wait.module, wait.node, why)


def _is_over_steps(resolver: Resolver, loops: Mapping[LoopNode, Loop], loop: Loop) -> bool:
    """Whether each pass of ``loop`` is a step; one that adds up gradients has a loop of its own.

    A pass that calls a function with the loop over the steps is an epoch.
    """
    own = {call.node for call in loop.optimizer_steps}
    if loop.kind in STEPS or not own:
        return loop.kind in STEPS
    for reached in reached_nodes(resolver, loop.node.body, loop.module):
        if isinstance(reached.node, LoopNode):
            own -= {call.node for call in loops[reached.node].optimizer_steps}
    return bool(own)


def _waits_of(
    resolver: Resolver,
    kinds: TensorKinds,
    loops: Mapping[LoopNode, Loop],
    reads: Mapping[ast.AST, DeviceRead],
    loop: Loop,
) -> Iterator[tuple[Fact, Fact | None]]:
    """Where ``loop`` waits in every step: in its own code, or in functions that are part of a step, with the call there.

    Those of ``loops`` in such functions have steps of their own.
    """
    for node in lexical_nodes(loop.node.body):
        if runs_rarely(loop.module, node, loop.node):
            continue
        for wait in _waits(resolver, kinds, reads, node, loop.module):
            yield Fact(loop.module, wait), None
        if not isinstance(node, ast.Call):
            continue
        for reached in reached_nodes(resolver, [node], loop.module):
            if reached.direct or _may_be_rare(reached.module, reached.node, loops):
                continue
            for wait in _waits(resolver, kinds, reads, reached.node, reached.module):
                if not _is_left_out(resolver, node, loop.module, reached):
                    yield Fact(reached.module, wait), Fact(loop.module, node)


def _is_left_out(resolver: Resolver, call: ast.Call, module: Module, reached: Reached) -> bool:
    """Whether ``call`` tells the function with ``reached`` to take another branch: ``run(batch, train=True)``."""
    owner = reached.module.function(reached.node)
    told = [
        _avoids(function, inner, reached)
        for inner in walk(call)  # `kept.append(run(batch, train=True))`
        if isinstance(inner, ast.Call)
        for function in resolver.callees(inner, module)
        if function.node is owner
    ]
    return bool(told) and all(told)


def _avoids(called: Function, call: ast.Call, reached: Reached) -> bool:
    child = reached.node
    for ancestor in reached.module.ancestors(reached.node):
        if ancestor is called.node:
            return False
        if isinstance(ancestor, ast.If):
            told = _told_truth(ancestor.test, called, call, reached.module)
            if told is not None and child in (ancestor.orelse if told else ancestor.body):
                return True
        child = ancestor
    return False


def _told_truth(test: ast.expr, called: Function, call: ast.Call, module: Module) -> bool | None:
    """What ``test``, of a parameter of the function ``called`` by ``call``, is in that call; None where it does not say."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _told_truth(test.operand, called, call, module)
        return None if inner is None else not inner
    if not isinstance(test, ast.Name) or not isinstance(called.node, FunctionNode):
        return None
    if not all(isinstance(b.source, Parameter) for b in bindings_of(module, test)):
        return None
    passed = argument_for(called.node, test.id, call, called.bound)
    match (passed.given or passed.default) if passed is not None else None:
        case ast.Constant(value=bool(told)):
            return told
        case _:
            return None


def _waits(
    resolver: Resolver,
    kinds: TensorKinds,
    reads: Mapping[ast.AST, DeviceRead],
    node: ast.AST,
    module: Module,
) -> Iterator[ast.expr]:
    """What of ``node`` itself waits for the device, or asks it for a number."""
    if isinstance(node, ast.expr) and node in reads:
        yield node
    yield from waits_at(resolver, kinds, node, module)
    match node:
        case ast.Call(func=ast.Attribute(receiver, "cpu"), args=[], keywords=[]):
            # Nothing but tensors and networks has the method.
            unknown = kinds.of(receiver, module) is TensorKind.UNKNOWN
            values = resolver.values(receiver, module)
            is_network = any(_is_network(resolver, value) for value in values)
            if unknown and not is_network and not is_made_on_host(resolver, receiver, module):
                yield node
        case _:
            pass


def _is_network(resolver: Resolver, value: Value) -> bool:
    match value:
        case Made(maker=Class() as cls):
            return is_module_class(resolver, cls)
        case Made(maker=External(name)):
            return name.startswith(("torch.nn.", "torchvision.models."))
        case _:
            return False


def _may_be_rare(module: Module, node: ast.AST, loops: Mapping[LoopNode, Loop]) -> bool:
    """Whether ``node``, in a function that a step calls, may run every so many steps only, or in a loop of its own steps."""
    child = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.If) and child in ancestor.body and _counts(ancestor.test):
            return True
        inner = loops.get(ancestor) if isinstance(ancestor, LoopNode) else None
        if inner is not None and inner.kind is not LoopKind.OTHER:
            return True
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
        child = ancestor
    return False


def _counts(test: ast.expr) -> bool:
    return any(isinstance(part, ast.Mod) for part in walk(test))
