"""A second DataLoader whose batches a step trains on, too: by ``zip(source, target)``, or one at a time by ``next(..)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..obstacles import Obstacle
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..script import TrainingScript
from ..training.steps import StepCode
from ..values.dataflow import own_nodes
from ..values.values import Made

_NEXT = frozenset({"next", "__next__"})
_COUNTS = frozenset({"builtins.len"})


def second_loader(script: TrainingScript, step: StepCode) -> Obstacle | None:
    """Where ``step`` is given the batches of another DataLoader than the one it goes over."""
    trained = {loader.node for loader in step.loop.trained}
    others = {loader.node for loader in script.loaders} - trained
    for place, module in _read(script, step) if others else ():
        if _is_made_by(script, place, module, trained, others):
            why = "batches of a second DataLoader are trained on, too, of which every process would have all"
            return Obstacle(module, place, why)
    return None


def _read(script: TrainingScript, step: StepCode) -> Iterator[tuple[ast.expr, Module]]:
    """What batches are taken from for the losses of ``step``."""
    for node, module in ((step.node, step.module), (step.loop.node, step.loop.module)):
        if isinstance(node, ast.For | ast.AsyncFor):
            yield node.iter, module
    for statement in sorted(step.behind_losses, key=lambda s: s.lineno):
        for node in own_nodes(statement):
            match node:
                case ast.Call(func=ast.Attribute(value=batches, attr=method)) if method in _NEXT:
                    yield batches, step.module
                case ast.Call(args=[batches, *_]) if script.resolver.names(
                    node.func, step.module
                ) == frozenset({"builtins.next"}):
                    yield batches, step.module
                case _:
                    pass


def _is_made_by(
    script: TrainingScript,
    place: ast.expr,
    module: Module,
    trained: set[ast.Call],
    others: set[ast.Call],
) -> bool:
    """Whether one of ``others``, not of ``trained``, makes ``place``, or is what that goes over: ``iter(loader)``."""
    pending: list[tuple[ast.AST, Module]] = [(place, module)]
    seen: set[ast.AST] = set()
    while pending:
        node, owner = pending.pop()
        if node in seen or _is_count(script, node, owner):
            continue
        seen.add(node)
        values = script.values(node, owner) if isinstance(node, ast.expr) else ()
        made = [value for value in values if isinstance(value, Made)]
        if any(value.call in trained for value in made):
            continue  # also where it is one of several: `loaders[phase]`
        if any(value.call in others for value in made):
            return True
        pending += [(value.call, value.module) for value in made]
        if isinstance(node, ast.Name):
            found = owner.scope(node).lookup(node.id)
            sources = [binding.source for binding in found[1]] if found is not None else []
            pending += [(s.value, owner) for s in sources if isinstance(s, Assigned)]
        pending += [(inner, owner) for inner in ast.iter_child_nodes(node)]
    return False


def _is_count(script: TrainingScript, node: ast.AST, module: Module) -> bool:
    return isinstance(node, ast.Call) and script.resolver.names(node.func, module) == _COUNTS
