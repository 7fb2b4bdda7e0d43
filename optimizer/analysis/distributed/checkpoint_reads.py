"""Checkpoints that are read: by every process onto its own GPU, and not before they are written."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from ...rewriting.edits import FileEdit, InsertBefore, SetArgument
from ..calls.reach import reached_nodes
from ..calls.signatures import call_argument
from ..editing.references import quoted
from ..facts import Loop
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..script import TrainingScript
from ..values.resolver import Resolver
from .process_names import Place, ProcessNames

_LOOKS = frozenset({"exists", "isfile", "is_file"})


def checkpoint_edits(
    script: TrainingScript, loop: Loop, alone: Collection[ast.AST], names: ProcessNames
) -> Iterator[FileEdit]:
    """What ``torch.load`` needs where several processes read and the first one writes.

    Without ``map_location`` tensors come back to the GPU they were saved from, the same for all processes. A file that the
    script has saved further up, or in its training ``loop`` under whatever name, may not be there yet for the others; what
    is in ``alone``, the first process runs while they wait.
    """
    saved = {_path(call, module, 1) for call, module in _calls(script, "torch.save")}
    behind = _run_behind(script.resolver, loop) if saved else frozenset[ast.AST]()
    for call, module in _calls(script, "torch.load"):
        if call_argument(call, "map_location", 1) is None and _is_state(call, module):
            span = module.span(call)
            edit = SetArgument(span, "map_location", quoted(module, "cpu"), 1)
            yield FileEdit(module.path, edit)
        above = [save for save, owner in _calls(script, "torch.save") if owner is module]
        is_saved = _path(call, module, 0) in saved and any(s.lineno < call.lineno for s in above)
        in_turn = any(around in alone for around in module.ancestors(call))
        if call in behind or (is_saved and not in_turn):
            world, dist = names.name(Place.WORLD_SIZE, module), names.distributed(module)
            code = f"if {world} > 1:\n    {dist}.barrier()  # until it is saved"
            span = module.span(_where_all_wait(call, module))
            yield FileEdit(module.path, InsertBefore(span, code))


def _run_behind(resolver: Resolver, loop: Loop) -> frozenset[ast.AST]:
    """What runs behind ``loop``, in its own function and in those that call it."""
    found: set[ast.AST] = set()
    ways: list[tuple[ast.AST, Module]] = [(loop.node, loop.module)]
    functions: set[ast.AST] = set()
    for node, module in ways:
        function = module.function(node)
        below = [
            statement
            for around in [node, *module.ancestors(node)]
            if isinstance(around, ast.stmt) and module.function(around) is function
            for statement in module.block(around)
            if module.span(statement) > module.span(around)
        ]
        found |= {reached.node for reached in reached_nodes(resolver, below, module)}
        if isinstance(function, ast.FunctionDef) and function not in functions:
            functions.add(function)
            ways += [(site.call, site.module) for site in resolver.call_sites(function)]
    return frozenset(found)


def _where_all_wait(load: ast.Call, module: Module) -> ast.stmt:
    """The statement of ``load``, or the outermost around it that looks whether the file is there, which it has to be for all."""
    found = module.statement(load)
    for around in module.ancestors(found):
        if isinstance(around, ast.If) and any(
            isinstance(node, ast.Call) and last_identifier(node.func) in _LOOKS
            for node in walk(around.test)
        ):
            found = around
    return found


def _calls(script: TrainingScript, name: str) -> Iterator[tuple[ast.Call, Module]]:
    for module in script.modules:
        for call in module.calls:
            if not script.may_run(call, module):
                continue
            if script.names(call.func, module) == frozenset([name]):
                yield call, module


def _path(call: ast.Call, module: Module, position: int) -> str:
    path = call_argument(call, "f", position)
    return module.code(path) if path is not None else ""


def _is_state(call: ast.Call, module: Module) -> bool:
    """Whether what is loaded is handed to ``load_state_dict``, which copies it to where it belongs."""
    parent = module.parents[call]
    if isinstance(parent, ast.Call):
        return isinstance(parent.func, ast.Attribute) and parent.func.attr == "load_state_dict"
    if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name)):
        return False
    name = parent.targets[0].id
    return any(
        isinstance(other.func, ast.Attribute)
        and other.func.attr == "load_state_dict"
        and any(isinstance(n, ast.Name) and n.id == name for a in other.args for n in walk(a))
        for other in module.calls
    )
