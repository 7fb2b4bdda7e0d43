"""What the first process does alone while the others wait: it downloads or writes the data of a training."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence, Set

from ...rewriting.edits import FileEdit, InsertAfter, InsertBefore
from ..calls.reach import reached_nodes
from ..facts import Fact
from ..loading.data_preparation import Preparation, find_preparations, prepared_by
from ..obstacles import Obstacle
from ..script import TrainingScript
from ..training.setup_place import Block
from ..values.resolver import Resolver
from .data_parallel import data_parallel_calls, wraps_part
from .process_names import Place, ProcessNames


def preparations_of(
    script: TrainingScript, blocks: Sequence[Block], drawn: Set[ast.AST]
) -> list[Preparation] | Obstacle:
    """What prepares the data in ``blocks``, or why one process cannot do it alone; the seeds ``drawn`` all have in common."""
    resolver = script.resolver
    wrapping = [c.node for c in data_parallel_calls(resolver) if not wraps_part(resolver, c)]
    together = {*wrapping, *drawn}
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


def done_meanwhile(
    resolver: Resolver, prepared: Sequence[Preparation], exchanges: Collection[ast.AST]
) -> Fact | None:
    """One of ``exchanges``, where processes hand something to each other, that the first would begin while the others wait for it."""
    for preparation in prepared:
        for reached in reached_nodes(resolver, prepared_by(preparation), preparation.module):
            if reached.node in exchanges:
                why = "the first process would wait for the others here, which wait for it to prepare the data"
                return Obstacle(reached.module, reached.node, why)
    return None


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
