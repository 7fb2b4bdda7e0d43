"""What becomes of a dataset's transforms when the images stay bytes until they are on the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ...rewriting.edits import AddImport, FileEdit, RemoveStatement
from ..editing.imports import orphaned_imports
from ..editing.replacing import replacement
from ..editing.splice import Piece, bounds, spliced
from ..program.name_uses import NameUses
from ..program.project import Project
from ..program.scopes import Assigned, Imported
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from .image_pipelines import ImagePipeline

_TRANSFORMS = ("torchvision.transforms", "torchvision.transforms.v2")
_REMOVED = frozenset(
    f"{package}.{name}" for package in _TRANSFORMS for name in ("ToTensor", "Normalize", "ToDtype")
)

_COMMENT = re.compile(r"[ \t]*(?P<comma>,?)[ \t]*#[^\r\n]*")


def pipeline_edits(
    project: Project, pipelines: Iterable[ImagePipeline], kept: Iterable[ast.expr]
) -> list[FileEdit]:
    """The edits that let ``pipelines`` make bytes; ``kept`` are expressions whose names the new code still uses."""
    edits: list[FileEdit] = []
    gone: dict[Module, list[ast.AST]] = {}
    for pipeline in pipelines:
        edits += _pipeline_edit(pipeline)
        gone.setdefault(pipeline.module, []).extend(pipeline.removed)
        if not pipeline.by_dtype:
            gone[pipeline.module].append(pipeline.node.func)
    for module, removed in gone.items():
        statements = _orphaned_assignments(project, module, removed, set(kept))
        edits += [FileEdit(module.path, RemoveStatement(module.span(s))) for s in statements]
        edits += orphaned_imports(project, module, [*removed, *statements], _REMOVED)
    return list(dict.fromkeys(edits))


def _pipeline_edit(pipeline: ImagePipeline) -> list[FileEdit]:
    module, call = pipeline.module, pipeline.node
    edits: list[FileEdit] = []
    pieces: list[Piece] = []
    if not pipeline.by_dtype:
        start, end = bounds(module, call.func)
        text = module.code(call.func)
        if isinstance(call.func, ast.Attribute):
            pieces.append(Piece(end - len(call.func.attr), end, "PILToTensor"))
        else:
            pieces.append(Piece(start, end, "PILToTensor"))
            edits += _import(module, text)
    if pipeline.removed and pipeline.display is not None:
        first = pipeline.display.elts.index(pipeline.removed[0])
        pieces.append(_cut(module, pipeline.display.elts[first - 1], pipeline.removed[-1]))
    root = pipeline.root
    code = spliced(module, root, pieces)
    return [replacement(module, root, code), *edits]


def _import(module: Module, name: str) -> list[FileEdit]:
    """``from torchvision.transforms import PILToTensor``, beside where ``ToTensor`` comes from, unless a star brings it."""
    for binding in module.scopes.by_node[module.tree].bindings.get(name, []):
        if isinstance(binding.source, Imported) and binding.source.attribute is not None:
            return [FileEdit(module.path, AddImport(binding.source.module, "PILToTensor"))]
    return []


def _cut(module: Module, before: ast.expr, last: ast.expr) -> Piece:
    """What stands behind ``before`` up to the end of ``last``, and the comment there; comments on the line of ``before`` stay."""
    text = "\n".join(module.lines)
    start, end = bounds(module, before)[1], bounds(module, last)[1]
    line_end = text.find("\n", start)
    comma = ""
    if start <= line_end < end:
        behind = _COMMENT.match(text, end)
        comma, end = (behind["comma"], behind.end()) if behind is not None else ("", end)
        if "#" in text[start:line_end]:
            if text[end : end + 1] == ",":
                end += 1
            return Piece(line_end, end, "")
    return Piece(start, end, comma)


def _orphaned_assignments(
    project: Project, module: Module, removed: list[ast.AST], kept: set[ast.expr]
) -> list[ast.stmt]:
    """The assignments to variables that only ``removed`` code reads, such as that of a shared ``Normalize``."""
    uses = NameUses()
    found: list[ast.stmt] = []
    gone = {node for root in removed for node in walk(root)}
    kept_names = {node.id for root in kept for node in walk(root) if isinstance(node, ast.Name)}
    pending = [node for node in gone if isinstance(node, ast.Name)]
    while pending:
        name = pending.pop()
        scope, bindings = module.scope(name).lookup(name.id) or (None, [])
        is_local = scope is not None and isinstance(scope.node, FunctionNode)
        if len(bindings) != 1 or not isinstance(bindings[0].source, Assigned):
            continue
        statement = module.statement(bindings[0].node)
        is_plain = isinstance(statement, ast.Assign) and statement.targets == [bindings[0].node]
        reads = {use for use in uses.of(bindings[0], module) if isinstance(use.ctx, ast.Load)}
        if (
            is_plain
            and statement not in found
            and reads <= gone
            and name.id not in kept_names
            and (is_local or not _named_elsewhere(project, module, name.id))
        ):
            found.append(statement)
            inner = list(walk(statement))
            gone.update(inner)
            pending += [node for node in inner if isinstance(node, ast.Name)]
    return sorted(found, key=lambda statement: statement.lineno)


def _named_elsewhere(project: Project, module: Module, name: str) -> bool:
    """Whether another file may read the variable ``name`` of ``module``."""
    return any(
        (isinstance(node, ast.Name) and node.id == name)
        or (isinstance(node, ast.Attribute) and node.attr == name)
        or (isinstance(node, ast.alias) and node.name in {name, "*"})
        for other in project.modules
        if other is not module
        for node in other.nodes
    )
