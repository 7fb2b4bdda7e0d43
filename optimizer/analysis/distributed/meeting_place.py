"""Where the processes that torchrun starts meet: ahead of all that they do together, by one process group."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...rewriting.edits import FileEdit, InsertBefore
from ..calls.reach import reached_nodes
from ..editing.references import quoted
from ..program.syntax import Module
from ..program.trees import walk
from ..training.setup_place import Block
from ..values.resolver import Resolver
from .process_names import Place, ProcessNames

_BEFOREHAND = (
    *("builtins.", "argparse.", "collections.", "datetime.", "logging.", "os.", "pathlib.", "sys."),
    *("time.", "warnings.", "yaml.", "json."),
)
"""What a script may call before its processes meet: nothing that takes part in the training."""


@dataclass(frozen=True)
class MeetingPlace:
    """The processes meet above ``statement``; ``also_imported``: a worker process that imports the file comes there, too."""

    module: Module
    statement: ast.stmt
    also_imported: bool


def meeting_place(
    resolver: Resolver, entry: Module, blocks: Sequence[Block], together: Collection[ast.AST]
) -> MeetingPlace | None:
    """The place above the first statement of ``blocks`` that has to do with torch, below a main guard.

    Above the guard where what is there has to be done by processes that have met already: ``together``.
    """
    for block in blocks:
        outside = block.module is entry and entry.main_guards and block.trains in entry.tree.body
        if outside and not _reaches(resolver, block, together):
            continue
        for statement in block.before:
            inside = any(node in together for node in walk(statement))
            if inside or _starts(resolver, statement, block.module):
                return MeetingPlace(block.module, statement, bool(outside))
    if not blocks:
        return None
    return MeetingPlace(blocks[-1].module, blocks[-1].trains, False)


def _reaches(resolver: Resolver, block: Block, wanted: Collection[ast.AST]) -> bool:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    run = [s for s in block.before if not isinstance(s, definitions)]
    return any(reached.node in wanted for reached in reached_nodes(resolver, run, block.module))


def _starts(resolver: Resolver, statement: ast.stmt, module: Module) -> bool:
    passed = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if isinstance(statement, passed):
        return False
    calls = [node for node in walk(statement) if isinstance(node, ast.Call)]
    return any(
        resolver.callees(call, module)
        or any(not name.startswith(_BEFOREHAND) for name in resolver.names(call.func, module))
        for call in calls
    )


def process_group_edit(place: MeetingPlace, names: ProcessNames, *, waits_long: bool) -> FileEdit:
    """The edit that lets the processes meet at ``place``, once it is known what they do together.

    At the end gloo's threads have to let go of tensors that the script handed to them, for which they need Python: one that comes
    too late, after Python has begun to shut down, ends the process by SIGABRT, and torchrun takes the run for failed (12 of 35 runs
    of a small script, torch 2.14 on two CPU cores; none of 52 with the moment that they are given here). Destroying the group does not wait for them while a network that is wrapped lives on.
    """
    module = place.module
    dist, torch = names.distributed(module), names.spelled(module, "torch")
    atexit = names.spelled(module, "atexit")
    with_gpus, without = quoted(module, "cpu:gloo,cuda:nccl"), quoted(module, "gloo")
    backends = f"{with_gpus} if {torch}.cuda.is_available() else {without}"
    if waits_long:
        backends += f", timeout={names.imported(module, 'datetime', 'timedelta')}(hours=2)"
    rows = [
        f"if {names.name(Place.WORLD_SIZE, module)} > 1:",
        f"    if {torch}.cuda.is_available():",
        f"        {torch}.cuda.set_device({names.name(Place.LOCAL_RANK, module)})",
        f"    {dist}.init_process_group({backends})",
    ]
    if names.has_helpers:
        sleep = f"{names.spelled(module, 'time')}.sleep"
        rows.append(f"    {atexit}.register({sleep}, 0.1)  # lets its threads finish")
    rows.append(f"    {atexit}.register({dist}.destroy_process_group)  # also behind an error")
    code = "\n".join(rows)
    span = module.span(place.statement)
    return FileEdit(module.path, InsertBefore(span, code, True, outside=True))
