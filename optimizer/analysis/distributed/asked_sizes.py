"""Where a loader is asked for its batch size, which is that of one process once several share its batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...rewriting.edits import FileEdit
from ..editing.replacing import replacement
from ..facts import DataLoader
from ..loading.loaders import loaders_in
from ..obstacles import Obstacle
from ..program.syntax import Module
from ..values.resolver import Resolver
from .process_names import Place, ProcessNames

_PRINT = frozenset({"builtins.print"})


def asked_size_edits(
    resolver: Resolver,
    loader: DataLoader,
    loaders: tuple[DataLoader, ...],
    names: ProcessNames,
) -> Iterator[FileEdit]:
    """What is worked out of ``loader.batch_size``, or told of it, goes on with the size of a whole batch."""
    for node, module in _asked(resolver, loader, loaders):
        size = f"{module.code(node)} * {names.name(Place.WORLD_SIZE, module)}"
        yield replacement(module, node, size)


def asked_size_obstacle(
    resolver: Resolver, loader: DataLoader, loaders: tuple[DataLoader, ...]
) -> Obstacle | None:
    """A use of ``loader.batch_size`` that may want the size of one process, or be of another loader."""
    for node, module in _asked(resolver, loader, loaders):
        asked = loaders_in(loaders, resolver.values(node.value, module))
        if len(asked) > 1:
            why = f"`{module.code(node)}` may be that of a loader that every process goes over"
            return Obstacle(module, node, why)
        parent = module.parents[node]
        if isinstance(parent, ast.BinOp | ast.FormattedValue) or (
            isinstance(parent, ast.Call) and resolver.names(parent.func, module) == _PRINT
        ):
            continue
        return Obstacle(module, node, f"`{module.code(node)}` would be that of one process")
    return None


def _asked(
    resolver: Resolver, loader: DataLoader, loaders: tuple[DataLoader, ...]
) -> Iterator[tuple[ast.Attribute, Module]]:
    for module in resolver.project.modules:
        for node in module.attributes_of("batch_size"):
            if isinstance(node.ctx, ast.Load) and loader in loaders_in(
                loaders, resolver.values(node.value, module)
            ):
                yield node, module
