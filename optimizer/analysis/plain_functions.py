"""Which functions are only ever called by their names, as ``train(..)`` or ``module.train(..)``.

No object can stand for such a function, so that ``model.train(..)`` does not call it, whatever ``model`` may be. That
spares the question what it may be: in large projects it leads to everything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from .project import Project
from .scopes import Imported
from .syntax import FunctionNode, Module, first_name, last_identifier


class PlainFunctions:
    """The functions at the top level of the files of ``project`` that are named nowhere but in calls and imports."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def __contains__(self, function: FunctionNode) -> bool:
        module = self._modules.get(function)
        return (
            module is not None
            and function.name not in self._mentioned
            and not any(
                module.name == given or module.name.startswith(f"{given}.")
                for given in self._given_modules
            )
        )

    def may_call(self, function: ast.expr, module: Module) -> bool:
        """Whether a call of ``function`` in ``module`` may be one of a plain function: ``f(..)``, ``imported.f(..)``."""
        if not isinstance(function, ast.Attribute):
            return isinstance(function, ast.Name)
        imported = self._imported_names[module]
        root = first_name(function)
        return imported is None or (root is not None and root.id in imported)

    @cached_property
    def _modules(self) -> dict[ast.stmt, Module]:
        return {
            statement: module
            for module in self._project.modules
            for statement in module.tree.body
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            and all(
                self._is_of_library(decorator, module) for decorator in statement.decorator_list
            )
        }

    def _is_of_library(self, decorator: ast.expr, module: Module) -> bool:
        """Whether ``decorator`` is a library's: one of the project's own may keep the function somewhere."""
        root = first_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
        source = module.imported_once.get(root.id) if root is not None else None
        return source is not None and self._project.find(module, source) is None

    @cached_property
    def _imported_names(self) -> dict[Module, frozenset[str] | None]:
        """The names that imports bind, in any scope; None for a file where they cannot be told."""
        return {
            module: None
            if any(scope.star_imports for scope in module.scopes.by_node.values())
            else frozenset(
                name for scope in module.scopes.by_node for name, _ in _imports(module, scope)
            )
            for module in self._project.modules
        }

    @cached_property
    def _mentioned(self) -> frozenset[str]:
        """What may be kept under another name: it is read without being called."""
        found: set[str] = set()
        for module in self._project.modules:
            called = {call.func for call in module.calls}
            for node in module.nodes_of(ast.Name, ast.Attribute):
                if (
                    node not in called
                    and isinstance(node.ctx, ast.Load)
                    and self.may_call(node, module)
                ):
                    found.add(last_identifier(node))
        return frozenset(found)

    @cached_property
    def _given_modules(self) -> frozenset[str]:
        """The modules that are read as objects, not to look something up in them."""
        found: set[str] = set()
        for module in self._project.modules:
            sources = [
                (name, source)
                for scope in module.scopes.by_node
                for name, source in _imports(module, scope)
            ]
            for name, source in sources:
                first_party = (
                    self._project.find(module, source)
                    if source.attribute is None
                    else self._project.find_submodule(module, source)
                )
                if first_party is not None and any(
                    isinstance(use.ctx, ast.Load)
                    and not isinstance(module.parents[use], ast.Attribute)
                    for use in module.names_of(name)
                ):
                    found.add(first_party.name)
        return frozenset(found)


def _imports(module: Module, scope: ast.AST) -> Iterator[tuple[str, Imported]]:
    for name, bindings in module.scopes.by_node[scope].bindings.items():
        for binding in bindings:
            if isinstance(binding.source, Imported):
                yield name, binding.source
