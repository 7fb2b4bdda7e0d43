"""Which functions are only ever called by their names, as ``train(..)`` or ``module.train(..)``.

No object can stand for such a function, so that ``model.train(..)`` does not call it, whatever ``model`` may be. That
spares the question what it may be: in large projects it leads to everything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from ..program.project import Project
from ..program.scopes import Imported
from ..program.syntax import FunctionNode, Module, first_name


class PlainFunctions:
    """The functions at the top level of the files of ``project`` that are named nowhere but in calls and imports."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def __contains__(self, function: FunctionNode) -> bool:
        module = self._modules.get(function)
        return (
            module is not None
            and self._mentioned.isdisjoint(self.names(function))
            and not any(
                module.name == given or module.name.startswith(f"{given}.")
                for given in self.given_modules
            )
        )

    def names(self, function: FunctionNode) -> frozenset[str]:
        """The names that imports give to ``function``, its own among them."""
        return self.imported_as.get(function.name, frozenset()) | {function.name}

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
    def imported_as(self) -> dict[str, frozenset[str]]:
        """The names under which ``from module import name`` binds each name."""
        found: dict[str, set[str]] = {}
        for module in self._project.modules:
            for name, source in self._imports[module]:
                if source.attribute is not None:
                    found.setdefault(source.attribute, set()).add(name)
        return {attribute: frozenset(names) for attribute, names in found.items()}

    @cached_property
    def _imports(self) -> dict[Module, tuple[tuple[str, Imported], ...]]:
        """The names that the imports of a file bind, in any scope."""
        return {
            module: tuple(
                (name, binding.source)
                for scope in module.scopes.by_node.values()
                for name, bindings in scope.bindings.items()
                for binding in bindings
                if isinstance(binding.source, Imported)
            )
            for module in self._project.modules
        }

    @cached_property
    def _imported_names(self) -> dict[Module, frozenset[str] | None]:
        """The names that the imports of a file bind; None where they cannot be told."""
        return {
            module: None
            if any(scope.star_imports for scope in module.scopes.by_node.values())
            else frozenset(name for name, _ in self._imports[module])
            for module in self._project.modules
        }

    @cached_property
    def _mentioned(self) -> frozenset[str]:
        """What may be kept under another name: it is read, not to be called nor to look something up in it."""
        return self._mentioned_parts.union(*self._mentioned_names.values())

    @cached_property
    def _mentioned_names(self) -> dict[Module, frozenset[str]]:
        """The variables of :attr:`_mentioned`, by the file that reads them."""
        return {
            module: frozenset(
                node.id for node in self._mentions(module) if isinstance(node, ast.Name)
            )
            for module in self._project.modules
        }

    @cached_property
    def _mentioned_parts(self) -> frozenset[str]:
        """What :attr:`_mentioned` has of imported modules and packages: ``package.engine``."""
        return frozenset(
            node.attr
            for module in self._project.modules
            for node in self._mentions(module)
            if isinstance(node, ast.Attribute)
        )

    def _mentions(self, module: Module) -> Iterator[ast.Name | ast.Attribute]:
        called = {call.func for call in module.calls}
        for node in module.nodes_of(ast.Name, ast.Attribute):
            parent = module.parents[node]
            if (
                node not in called
                and isinstance(node.ctx, ast.Load)
                and (not isinstance(parent, ast.Attribute) or parent.attr == "__dict__")
                and self.may_call(node, module)
            ):
                yield node

    @cached_property
    def given_modules(self) -> frozenset[str]:
        """The modules that may be kept under another name: ``run(engine)``, ``how = package.engine``."""
        named = self._mentioned_parts.union(
            *(
                self._mentioned_names[m]
                for m, names in self._imported_names.items()
                if names is None
            )
        )
        found = {m.name for m in self._project.modules if m.name.rpartition(".")[2] in named}
        for module in self._project.modules:
            for name, source in self._imports[module]:
                first_party = (
                    self._project.find(module, source)
                    if source.attribute is None
                    else self._project.find_submodule(module, source)
                )
                if first_party is not None and name in self._mentioned_names[module]:
                    found.add(first_party.name)
        return frozenset(found)
