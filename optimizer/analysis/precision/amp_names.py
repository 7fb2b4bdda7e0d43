"""Where a script names the device-specific AMP classes that ``torch.amp`` has replaced."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import Enum

from ..facts import Fact
from ..program.scopes import Imported
from ..program.syntax import Module, first_name
from ..values.resolver import Resolver
from ..values.values import External, Literal

DEVICE_AMP_NAMES = {
    f"torch.{device}.amp.{name}": device
    for device, names in (
        ("cuda", ("autocast", "GradScaler", "custom_fwd", "custom_bwd")),
        ("cpu", ("autocast", "GradScaler")),
    )
    for name in names
}
"""The deprecated names and the device type each stands for (https://docs.pytorch.org/docs/stable/amp.html)."""

_DEVICE_AMP_MODULES = frozenset({"torch.cuda.amp", "torch.cpu.amp"})
_AMP = re.compile(r"\bamp\b")
"""However they are imported, the module's name is spelled somewhere (in a word like ``example`` it says nothing)."""


class AmpUse(Enum):
    """How a name is used: called, decorating without a call, only named (alias, annotation), or otherwise.

    ``REPLACED``: something else is put in its place. ``BY_NAME``: a call gets its dotted name as text.
    """

    CALLED = "called"
    DECORATES = "decorates"
    NAMED = "named"
    REPLACED = "replaced"
    BY_NAME = "by name"
    OTHER = "other"


class Reach(Enum):
    """How the name is known where it is used.

    ``SPELLED``: written out from ``torch`` on. ``LOCAL``: imported or aliased in the same file.
    ``FOREIGN``: imported from another first-party module.
    """

    SPELLED = "spelled"
    LOCAL = "local"
    FOREIGN = "foreign"


@dataclass(frozen=True, eq=False)
class AmpReference(Fact):
    """A use of a device-specific AMP name; ``name`` is its public name, ``torch.cuda.amp.autocast``.

    ``imported_by`` is the import statement that binds the first of its dotted names to something inside
    ``torch.cuda.amp`` or to that module itself, None when there is no such statement in the file.
    """

    node: ast.expr
    name: str
    use: AmpUse
    reach: Reach
    imported_by: ast.Import | ast.ImportFrom | None


def find_amp_references(resolver: Resolver) -> tuple[AmpReference, ...]:
    """Every use of a device-specific AMP name in the project, in source order per module."""
    found: list[AmpReference] = []
    modules = resolver.project.modules
    if not any(_AMP.search(module.source.text) for module in modules):
        return ()
    for module in modules:
        for node in module.nodes:
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                reference = _reference(resolver, node, module)
            else:
                reference = _patch(resolver, node, module)
            if reference is not None:
                found.append(reference)
    return tuple(found)


def _patch(resolver: Resolver, node: ast.AST, module: Module) -> AmpReference | None:
    """``node`` where it puts something else in the place of a name, or may: ``mock.patch("torch.cuda.amp.autocast")``."""
    if isinstance(node, ast.Attribute):
        for owner in resolver.names(node.value, module):
            name = f"{owner}.{node.attr}"
            if name in DEVICE_AMP_NAMES:
                return AmpReference(module, node, name, AmpUse.REPLACED, Reach.SPELLED, None)
    elif (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value in DEVICE_AMP_NAMES
        and isinstance(module.parents[node], ast.Call)
    ):
        return AmpReference(module, node, node.value, AmpUse.BY_NAME, Reach.SPELLED, None)
    return None


def amp_imports(module: Module) -> tuple[ast.ImportFrom, ...]:
    """The ``from torch.cuda.amp import ..`` statements of a file, and their like."""
    return tuple(
        node
        for node in module.nodes
        if isinstance(node, ast.ImportFrom)
        and not node.level
        and (node.module or "").startswith(tuple(_DEVICE_AMP_MODULES))
    )


def _reference(
    resolver: Resolver, node: ast.Name | ast.Attribute, module: Module
) -> AmpReference | None:
    values = resolver.values(node, module)
    names = {v.name for v in values if isinstance(v, External)}
    deprecated = names & DEVICE_AMP_NAMES.keys()
    if not deprecated:
        return None
    certain = len(names) == 1 and all(
        isinstance(v, External) or (isinstance(v, Literal) and v.value is None) for v in values
    )
    use = _use(module, node) if certain else AmpUse.OTHER
    reach, statement = _reach(module, node)
    return AmpReference(module, node, min(deprecated), use, reach, statement)


def _use(module: Module, node: ast.expr) -> AmpUse:
    parent = module.parents[node]
    if isinstance(parent, ast.Call):
        if parent.func is node:
            return AmpUse.CALLED
        is_type_test = isinstance(parent.func, ast.Name) and parent.func.id == "isinstance"
        return AmpUse.NAMED if is_type_test else AmpUse.OTHER
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and node in parent.decorator_list:
        return AmpUse.DECORATES
    if isinstance(parent, ast.Assign) and parent.value is node:
        targets = parent.targets
        is_alias = len(targets) == 1 and isinstance(targets[0], ast.Name)
        # What a class calls so may be another thing in a class that derives from it.
        is_alias = is_alias and not module.scope(node).is_class
        return AmpUse.NAMED if is_alias else AmpUse.OTHER
    return AmpUse.NAMED if _in_annotation(module, node) else AmpUse.OTHER


def _in_annotation(module: Module, node: ast.AST) -> bool:
    for parent in module.ancestors(node):
        if isinstance(parent, ast.arg):
            return True
        if isinstance(parent, ast.AnnAssign):
            return parent.annotation is node
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            return parent.returns is node
        if not isinstance(parent, ast.Subscript | ast.BinOp | ast.Tuple):
            return False
        node = parent
    return False


def _reach(
    module: Module, node: ast.Name | ast.Attribute
) -> tuple[Reach, ast.Import | ast.ImportFrom | None]:
    first = first_name(node)
    found = module.scope(first).lookup(first.id) if first is not None else None
    for binding in found[1] if found else ():
        source = binding.source
        if not isinstance(source, Imported):
            return Reach.LOCAL, None
        path = source.module if source.attribute is None else f"{source.module}.{source.attribute}"
        statement = module.statement(binding.node)
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        if source.level == 0 and path.startswith(tuple(_DEVICE_AMP_MODULES)):
            return Reach.LOCAL, statement
        if isinstance(node, ast.Name):
            return Reach.FOREIGN, None
    return Reach.SPELLED, None
