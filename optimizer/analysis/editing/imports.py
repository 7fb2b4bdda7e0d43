"""Imports that an edit leaves without a use."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...rewriting.edits import FileEdit, RemoveImportedName, RemoveStatement, ReplaceStatement
from ..program.project import Project
from ..program.scopes import Binding, Imported
from ..program.syntax import Module
from ..program.trees import walk


def orphaned_imports(
    project: Project, module: Module, removed: Iterable[ast.AST], names: frozenset[str]
) -> tuple[FileEdit, ...]:
    """The edits that drop the imports of ``module`` that only the code in ``removed`` uses.

    Only imports of the library ``names`` (``gc``, ``torch.autograd.Variable``) are dropped: the caller knows that importing them
    does nothing else. An import that other first-party modules may reach through this one stays.
    """
    gone = {node for root in removed for node in walk(root)}
    used = {n.id for n in gone if isinstance(n, ast.Name)}
    if not used or _is_star_imported(project, module):
        return ()
    edits: list[FileEdit] = []
    for scope in module.scopes.by_node.values():
        for name in sorted(used & scope.bindings.keys()):
            bindings = scope.bindings[name]
            if len(bindings) != 1 or _library_name(bindings[0]) not in names:
                continue
            uses = _uses(module, bindings[0])
            if uses and uses <= gone and not _imported_elsewhere(project, module, name):
                edits += _removal(module, bindings[0])
    return tuple(edits)


def _library_name(binding: Binding) -> str:
    source = binding.source
    if not isinstance(source, Imported) or source.level:
        return ""
    return source.module if source.attribute is None else f"{source.module}.{source.attribute}"


def _uses(module: Module, binding: Binding) -> set[ast.AST]:
    uses: set[ast.AST] = set()
    for node in module.nodes:
        if isinstance(node, ast.Name) and node.id == binding.name:
            found = module.scope(node).lookup(binding.name)
            if found is not None and binding in found[1]:
                uses.add(node)
        elif isinstance(node, ast.Constant) and node.value == binding.name:
            uses.add(node)  # ``__all__``, ``globals()["gc"]``
    return uses


def _removal(module: Module, binding: Binding) -> list[FileEdit]:
    statement = module.statement(binding.node)
    if isinstance(statement, ast.ImportFrom):
        alias = binding.node
        if not isinstance(alias, ast.alias) or alias.asname:
            return []
        return [FileEdit(module.path, RemoveImportedName(statement.module or "", alias.name))]
    if not isinstance(statement, ast.Import) or isinstance(module.parents[statement], ast.Try):
        return []
    rest = [alias for alias in statement.names if alias is not binding.node]
    span = module.span(statement)
    if not rest:
        return [FileEdit(module.path, RemoveStatement(span))]
    return [FileEdit(module.path, ReplaceStatement(span, ast.unparse(ast.Import(names=rest))))]


def _is_star_imported(project: Project, module: Module) -> bool:
    return any(
        project.find(other, star) is module
        for other in project.modules
        for scope in other.scopes.by_node.values()
        for star in scope.star_imports
    )


def _imported_elsewhere(project: Project, module: Module, name: str) -> bool:
    for other in project.modules:
        if other is module:
            continue
        for node in other.nodes:
            if isinstance(node, ast.ImportFrom):
                source = Imported(node.module or "", name, node.level)
                if project.find(other, source) is module and any(
                    a.name == name for a in node.names
                ):
                    return True
            elif isinstance(node, ast.Attribute) and node.attr == name:
                return True
    return False
