"""What the first process does alone while the others wait: it downloads or writes the data of a training."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set

from ...rewriting.edits import FileEdit, InsertAfter, InsertBefore
from ..loading.data_preparation import Preparation, find_preparations
from ..obstacles import Obstacle
from ..script import TrainingScript
from ..training.setup_place import Block
from .data_parallel import data_parallel_calls, wraps_part
from .process_names import Place, ProcessNames


def preparations_of(
    script: TrainingScript, blocks: Sequence[Block], exchanges: Set[ast.AST]
) -> list[Preparation] | Obstacle:
    """What prepares the data in ``blocks``, or why one process cannot do it alone.

    At ``exchanges``, and where a network is wrapped, the processes hand something to each other.
    """
    resolver = script.resolver
    wrapping = (c.node for c in data_parallel_calls(resolver) if not wraps_part(resolver, c))
    together = {*exchanges, *wrapping}
    for module in script.modules:
        if module is script.entry:
            continue
        imported = [s for s in module.tree.body if s not in module.main_only]
        found = find_preparations(resolver, imported, module, together)
        if isinstance(found, Obstacle) or found:
            where = found if isinstance(found, Obstacle) else found[0]
            why = "every process would write this at the same time, when it imports the file"
            return Obstacle(where.module, where.node, why)
    for block in blocks:
        found = find_preparations(resolver, block.before, block.module, together)
        if isinstance(found, Obstacle) or found:
            return found
    return []


def barrier_edits(prepared: Sequence[Preparation], names: ProcessNames) -> Iterator[FileEdit]:
    """The edits by which the other processes wait, and then find what the first has prepared."""
    for preparation in prepared:
        module = preparation.module
        rank, dist = names.name(Place.RANK, module), names.distributed(module)
        world = names.name(Place.WORLD_SIZE, module)
        first = f"if {rank} > 0:\n    {dist}.barrier()  # the first process prepares the data"
        then = f"if {rank} == 0 and {world} > 1:\n    {dist}.barrier()"
        yield FileEdit(module.path, InsertBefore(module.span(preparation.node), first))
        yield FileEdit(module.path, InsertAfter(module.span(preparation.last), then))
