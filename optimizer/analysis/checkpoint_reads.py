"""Checkpoints that are read: by every process onto its own GPU, and not before they are written."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..rewriting.edits import FileEdit, InsertBefore, SetArgument
from .process_names import Place, ProcessNames
from .references import quoted
from .script import TrainingScript
from .signatures import call_argument
from .syntax import Module


def checkpoint_edits(script: TrainingScript, names: ProcessNames) -> Iterator[FileEdit]:
    """What ``torch.load`` needs where several processes read and the first one writes.

    Without ``map_location`` tensors come back to the GPU they were saved from, the same for all processes. A file that the
    script has saved further up may not be there yet for the others.
    """
    saved = {_path(call, module, 1) for call, module in _calls(script, "torch.save")}
    for call, module in _calls(script, "torch.load"):
        if call_argument(call, "map_location", 1) is None and _is_state(call, module):
            span = module.span(call)
            edit = SetArgument(span, "map_location", quoted(module, "cpu"), 1)
            yield FileEdit(module.path, edit)
        behind = [save for save, owner in _calls(script, "torch.save") if owner is module]
        if _path(call, module, 0) in saved and any(s.lineno < call.lineno for s in behind):
            world, dist = names.name(Place.WORLD_SIZE, module), names.distributed(module)
            code = f"if {world} > 1:\n    {dist}.barrier()  # until it is saved"
            span = module.span(module.statement(call))
            yield FileEdit(module.path, InsertBefore(span, code))


def _calls(script: TrainingScript, name: str) -> Iterator[tuple[ast.Call, Module]]:
    for module in script.modules:
        for call in module.calls:
            function = module.function(call)
            if function is not None and function not in script.functions_run:
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
        and any(isinstance(n, ast.Name) and n.id == name for a in other.args for n in ast.walk(a))
        for other in module.calls
    )
