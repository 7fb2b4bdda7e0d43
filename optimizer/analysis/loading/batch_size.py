"""Where a script says of how many samples its training batches are."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..facts import DataLoader, Fact, Loop, not_one
from ..obstacles import Obstacle
from ..script import TrainingScript
from ..training.batch_division import counted_on
from ..values.values import Literal, Option
from .loaders import DATALOADER


@dataclass(frozen=True, eq=False)
class BatchSize(Fact):
    """The expression that says ``number``. ``flags`` are those of the command-line option whose default it is."""

    node: ast.expr
    number: int
    flags: tuple[str, ...] = ()


def find_batch_size(script: TrainingScript) -> BatchSize | Obstacle:
    """The one place that says it, or why there is none; other loaders may take theirs from there, too."""
    reading = [loop for loop in script.training_loops if loop.loaders]
    loaders = {loader.node: (loader, loop) for loop in reading for loader in loop.loaders}
    if len(loaders) != 1:
        what = "that the script trains on"
        found = [loader for loader, _ in loaders.values()]
        why = not_one(found, f"DataLoader {what}", f"DataLoaders {what}")
        return Obstacle(script.entry, script.entry.tree, why)
    ((loader, loop),) = loaders.values()
    return _said(script, loader, loop)


def _said(script: TrainingScript, loader: DataLoader, loop: Loop) -> BatchSize | Obstacle:
    resolver = script.resolver
    argument = loader.arguments.get("batch_size")
    if resolver.names(loader.node.func, loader.module) != frozenset({DATALOADER}):
        return Obstacle(loader.module, loader.node, "the class of its loader is the script's own")
    if "batch_sampler" in loader.arguments:
        return Obstacle(loader.module, loader.node, "a `batch_sampler` makes the batches")
    if argument is None:
        return Obstacle(
            loader.module, loader.node, "its DataLoader is given no batch size in sight"
        )
    values = list(resolver.values(argument.value, argument.module))
    found = _place(values[0]) if len(values) == 1 else None
    if found is None:
        code = argument.module.code(argument.value)
        return Obstacle(loader.module, loader.node, f"the batch size `{code}` is not one number")
    why = counted_on(resolver, found.number, loop)
    if isinstance(why, Obstacle):
        return why
    return found


def _place(value: object) -> BatchSize | None:
    match value:
        case Literal(int(number), ast.Constant() as node, module) if _is_size(number):
            return BatchSize(module, node, number)
        case Option(_, call, module, ast.Constant(value=int(number)) as node) if _is_size(number):
            return BatchSize(module, node, number, _flags(call))
        case _:
            return None


def _is_size(number: int) -> bool:
    return not isinstance(number, bool) and number >= 1


def _flags(option: ast.Call) -> tuple[str, ...]:
    said = [a.value for a in option.args if isinstance(a, ast.Constant)]
    return tuple(flag for flag in said if isinstance(flag, str))
