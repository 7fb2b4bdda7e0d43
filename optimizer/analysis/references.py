"""How a file spells a library name, so that emitted code reads like the code around it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..rewriting.edits import AddImport, FileEdit
from .scopes import Imported
from .syntax import Module
from .torch_names import canonical


@dataclass(frozen=True)
class Reference:
    """``code`` names the wanted thing in the file; ``edits`` add the import that needs, if any."""

    code: str
    edits: tuple[FileEdit, ...]


def reference(module: Module, name: str) -> Reference:
    """Spell the dotted library ``name`` (``torch.amp.GradScaler``) with the imports ``module`` has.

    Prefers the longest import at module level: ``from torch import nn`` makes ``torch.nn.ReLU`` ``nn.ReLU``. Without
    any, the top-level package is imported (``import torch``).
    """
    best: tuple[str, str] | None = None
    scope = module.scopes.by_node[module.tree]
    for local, bindings in scope.bindings.items():
        source = bindings[0].source
        if (
            not isinstance(source, Imported)
            or source.level
            or any(b.source != source for b in bindings)
        ):
            continue
        imported = (
            source.module if source.attribute is None else f"{source.module}.{source.attribute}"
        )
        for target in (imported, canonical(imported)):
            covers = name == target or name.startswith(f"{target}.")
            if covers and (best is None or len(target) > len(best[0])):
                best = (target, local)
    if best is not None:
        return Reference(best[1] + name[len(best[0]) :], ())
    package = name.partition(".")[0]
    return Reference(name, (FileEdit(module.path, AddImport(package)),))


def quoted(module: Module, text: str) -> str:
    """``text`` as a string literal with the quotes ``module`` mostly uses."""
    singles, doubles = 0, 0
    for node in module.nodes_of(ast.Constant):
        if isinstance(node.value, str):
            start = module.code(node)[:1]
            singles += start == "'"
            doubles += start == '"'
    mark = "'" if singles > doubles else '"'
    return f"{mark}{text}{mark}"
