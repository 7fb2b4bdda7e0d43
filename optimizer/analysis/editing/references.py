"""How a file spells a library name, so that emitted code reads like the code around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ...rewriting.edits import AddImport, FileEdit
from ..program.scopes import Assigned, Binding, Imported
from ..program.syntax import Module
from ..torch_names import canonical


@dataclass(frozen=True)
class Reference:
    """``code`` names the wanted thing in the file; ``edits`` add the import that needs, if any."""

    code: str
    edits: tuple[FileEdit, ...]


def reference(module: Module, name: str, at: ast.AST | None = None) -> Reference:
    """Spell the dotted library ``name`` (``torch.amp.GradScaler``) with the imports ``module`` has.

    Prefers the longest import at module level, or above in the function of ``at``: ``from torch import nn`` makes
    ``torch.nn.ReLU`` ``nn.ReLU``. Without any, the top-level package is imported (``import torch``).
    """
    best: tuple[str, str] | None = None
    for local, source in (*_imports(module, module.tree), *_imports_above(module, at)):
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


def _imports(module: Module, owner: ast.AST) -> Iterator[tuple[str, Imported]]:
    """The names that ``owner`` has from libraries by imports alone, or that are None for want of the library."""
    for local, bindings in module.scopes.by_node[owner].bindings.items():
        sources = [b.source for b in bindings if not _is_none(b)]
        source = sources[0] if sources else None
        if (
            isinstance(source, Imported)
            and not source.level
            and all(other == source for other in sources)
        ):
            yield local, source


def _is_none(binding: Binding) -> bool:
    """``torch = None`` below ``except ImportError``, say: code that needs the library fails there, ours as well as the file's."""
    match binding.source:
        case Assigned(ast.Constant(value=None), ()):
            return True
        case _:
            return False


def _imports_above(module: Module, at: ast.AST | None) -> Iterator[tuple[str, Imported]]:
    """The names that the function of ``at`` imports itself, whichever way it takes to there."""
    function = module.function(at) if at is not None else None
    if at is None or function is None:
        return
    above = {
        alias.asname or alias.name.partition(".")[0]
        for statement in function.body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        and module.span(statement) < module.span(at)
        for alias in statement.names
    }
    for local, source in _imports(module, function):
        if local in above:
            yield local, source


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
