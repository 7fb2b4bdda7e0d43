"""What keeps the compiled networks of a step from being run as CUDA graphs (``mode="reduce-overhead"``).

A CUDA graph writes its results to the same memory in every run: what a network gave is gone when the next run begins, which is
when the network is called again and no backward pass is pending. A run that reads it later fails. Gradients made in a graph lie
there, too. See https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html.

What is found here shows in the code. Results that reach other places through functions are not followed, nor is a state that one
step hands to the next: there the script fails in its first steps.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

from ..autograd.grad_modes import suspended_around
from ..calls.reach import Reached, reached_nodes
from ..facts import CallFact, Model
from ..networks.models import models_in
from ..obstacles import Obstacle
from ..optimizers.gradient_clearing import GradientClearing
from ..program.syntax import FunctionNode, Module
from ..program.trees import child_nodes, walk
from ..training.lifetimes import KEEPS
from ..training.loops import forward_calls
from ..training.steps import StepCode
from ..values.resolver import Resolver
from .compilation import pads_batches

_SAME_MEMORY = frozenset({"detach", "squeeze", "unsqueeze", "view", "flatten", "transpose"})
_NO_MEMORY = frozenset({"shape", "dtype", "device", "ndim"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DISPLAYS = (ast.List, ast.Tuple, ast.Dict, ast.Starred, ast.ListComp)


def capture_obstacle(
    resolver: Resolver,
    step: StepCode,
    networks: Sequence[Model],
    clearings: Sequence[GradientClearing],
    run: frozenset[FunctionNode | ast.Lambda],
) -> Obstacle | None:
    """The first thing seen that CUDA graphs of ``networks``, which ``step`` trains, would break or make slow.

    ``clearings`` fill gradients with zeros; ``run`` are the functions that run with the script.
    """
    if len(networks) > 1:
        why = "the step runs several compiled networks: what one gave may be gone when the next one has run"
        return Obstacle(step.module, step.node, why)
    if pads_batches(resolver, step.loop.loaders):
        why = "the batches are padded to their longest sample, and every length takes a graph"
        return Obstacle(step.module, step.node, why)
    if step.callers:
        why = "the loss is backpropagated in a function of its own, and whether the step calls the network once is not followed"
        return Obstacle(step.module, step.node, why)
    nodes = tuple(step.nodes(resolver))
    return (
        _called_again(resolver, step, networks)
        or _added_gradients(step, nodes, clearings)
        or next(_kept_results(resolver, networks, run), None)
    )


def _called_again(resolver: Resolver, step: StepCode, networks: Sequence[Model]) -> Obstacle | None:
    """Where a step calls a network again while it still uses what an earlier call gave.

    What the loss is made of takes one call. Others, such as an evaluation every so many steps, must give nothing that is read
    behind that call, and come where what it gave is read no more. With gradients, nothing of them may stay: a graph whose backward
    pass never comes keeps the next step from beginning anew.
    """
    why = "the step calls the network more than once: what one call gave may be gone after the next"
    loss = [s for r in step.regions if r.module is step.module for s in r.statements] or step.body
    nodes = tuple(reached_nodes(resolver, loss, step.module))
    calls = _calls_of(resolver, nodes, networks)
    reached = {node.node for node in nodes}
    for number, call in enumerate(calls):
        if number or _repeats(resolver, step, call.node, call.module, reached):
            return Obstacle(call.module, call.node, why)
    for statement in _outside(step.body, loss):
        again = _calls_of(resolver, reached_nodes(resolver, [statement], step.module), networks)
        apart = _is_apart(step, statement, loss)
        for call in again:
            if not apart or _stays(resolver, step, call):
                return Obstacle(call.module, call.node, why)
    return None


def _outside(block: Sequence[ast.stmt], inner: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of ``block``, also those inside of others, that hold none of ``inner``; the largest of each."""
    for statement in block:
        if statement in inner:
            continue
        if not any(node in inner for node in walk(statement)):
            yield statement
            continue
        for part in child_nodes(statement):
            inside = [part] if isinstance(part, ast.stmt) else getattr(part, "body", ())
            yield from _outside([s for s in inside if isinstance(s, ast.stmt)], inner)


def _is_apart(step: StepCode, other: ast.stmt, loss: Sequence[ast.stmt]) -> bool:
    """Whether nothing that ``other`` or the statements of ``loss``, whichever is first, give is read behind the second."""
    first, second = ([other], loss) if other.lineno < loss[0].lineno else (loss, [other])
    given = {n.id for s in first for n in walk(s) if _is_name(n, ast.Store)}
    return not any(
        _is_name(node, ast.Load) and node.id in given and node.lineno >= second[0].lineno
        for statement in step.body
        for node in walk(statement)
    )


def _stays(resolver: Resolver, step: StepCode, call: CallFact) -> bool:
    """Whether a variable of the step may hold what ``call`` gives with its graph."""
    own = call.module is step.module and call.module.function(call.node) is step.module.function(
        step.backwards[0].node
    )
    return own and not suspended_around(resolver, call.node, call.module)


def _is_name(node: ast.AST, context: type[ast.expr_context]) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)


def _repeats(
    resolver: Resolver, step: StepCode, call: ast.Call, module: Module, reached: set[ast.AST]
) -> bool:
    """Whether ``call`` may run more than once in a step."""
    seen: set[ast.AST] = set()
    while True:
        if any(loop in reached for loop in module.loops(call)) or _in_comprehension(call, module):
            return True
        function = module.function(call)
        if function is None or function is step.node or call in _nodes_below(step, module):
            return False
        sites = [site for site in resolver.call_sites(function) if site.call in reached]
        if function in seen or len(sites) != 1:
            return True
        seen.add(function)
        (site,) = sites
        call, module = site.call, site.module


def _in_comprehension(call: ast.Call, module: Module) -> bool:
    statement = module.statement(call)
    for ancestor in module.ancestors(call):
        if ancestor is statement:
            return False
        if isinstance(ancestor, _COMPREHENSIONS):
            return True
    return False


def _nodes_below(step: StepCode, module: Module) -> frozenset[ast.AST]:
    if module is not step.module:
        return frozenset()
    return frozenset(node for statement in step.body for node in walk(statement))


def _calls_of(
    resolver: Resolver, nodes: Iterable[Reached], networks: Sequence[Model]
) -> list[CallFact]:
    wanted = {network.node for network in networks}
    return [
        call
        for call in forward_calls(resolver, nodes)
        if any(
            model.node in wanted
            for model in models_in(resolver, resolver.values(call.node.func, call.module))
        )
    ]


def _added_gradients(
    step: StepCode, nodes: Sequence[Reached], clearings: Sequence[GradientClearing]
) -> Obstacle | None:
    """A backward pass that may add to gradients which are there already."""
    if clearings:
        why = "gradients are filled with zeros: they stay in the graph's memory"
        return Obstacle(clearings[0].module, clearings[0].node, why)
    backward, *others = step.backwards
    for other in others:
        return Obstacle(step.module, other.node, "the step has several backward passes")
    around = [backward.statement, *step.module.ancestors(backward.statement)]
    for reached in nodes:
        node = reached.node
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "zero_grad"
            and reached.module is step.module
        ):
            block = step.module.block(step.module.statement(node))
            if any(ancestor in block for ancestor in around):
                return None
    why = "not every backward pass is seen to begin without gradients, which would be in the graph's memory"
    return Obstacle(step.module, backward.node, why)


def _kept_results(
    resolver: Resolver, networks: Sequence[Model], run: frozenset[FunctionNode | ast.Lambda]
) -> Iterator[Obstacle]:
    """Where a result of ``networks`` is put away as it is, in training or evaluation."""
    for module in resolver.project.modules:
        nodes = [
            Reached(node, module, True)
            for node in module.calls
            if (function := module.function(node)) is None or function in run
        ]
        for call in _calls_of(resolver, nodes, networks):
            kept = _kept(call.node, module)
            if kept is not None:
                why = "results of the network are kept, and the next call overwrites them"
                yield Obstacle(module, kept, why)


def _kept(result: ast.expr, module: Module, seen: frozenset[str] = frozenset()) -> ast.AST | None:
    """The place that puts ``result`` away, or a variable that holds it."""
    place, parent = _outermost(result, module)
    if _puts_away(place, parent):
        return parent
    if not (isinstance(parent, ast.Assign) and place is parent.value):
        return None
    if any(isinstance(target, ast.Attribute | ast.Subscript) for target in parent.targets):
        return parent
    names = {n.id for t in parent.targets for n in walk(t) if isinstance(n, ast.Name)} - seen
    function = module.function(parent)
    for use in (use for name in names for use in module.names_of(name)):
        if isinstance(use.ctx, ast.Load) and module.function(use) is function:
            kept = _kept(use, module, seen | names)
            if kept is not None:
                return kept
    return None


def _outermost(node: ast.expr, module: Module) -> tuple[ast.expr, ast.AST]:
    """The largest expression around ``node`` that holds the same memory, and the node around that."""
    parent = module.parents[node]
    while isinstance(parent, (ast.Attribute, ast.Subscript, *_DISPLAYS)):
        outer = module.parents[parent]
        whole = outer if isinstance(outer, ast.Call) and outer.func is parent else parent
        if isinstance(parent, ast.Attribute) and (
            parent.attr in _NO_MEMORY or (whole is outer and parent.attr not in _SAME_MEMORY)
        ):
            break
        if isinstance(parent, ast.Subscript) and node is parent.slice:
            break
        node, parent = whole, module.parents[whole]
    return node, parent


def _puts_away(node: ast.expr, parent: ast.AST) -> bool:
    if isinstance(node, ast.ListComp):
        return True
    if isinstance(parent, ast.AugAssign):
        return isinstance(node, ast.List)
    return (
        isinstance(parent, ast.Call)
        and node in parent.args
        and isinstance(parent.func, ast.Attribute)
        and parent.func.attr in KEEPS
    )
