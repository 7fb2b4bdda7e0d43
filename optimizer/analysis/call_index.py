"""Which calls of a project may reach a function, judged by names alone: a superset, cheap to ask for."""

from __future__ import annotations

import ast
from functools import cached_property

from .project import Project
from .scopes import Imported
from .syntax import FunctionNode, Module, last_identifier

Call = tuple[ast.Call, Module]


class CallIndex:
    """The calls of ``project`` by the last identifier of what they call."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def candidates(self, function: FunctionNode) -> list[Call]:
        """Every call that may reach ``function``."""
        if function.name in {"forward", "__call__"}:
            return self._calls_of_objects
        names = {function.name}
        owner = self._parents.get(function)
        if function.name == "__init__" and isinstance(owner, ast.ClassDef):
            names |= self._with_subclasses(owner.name)
        names |= {local for name in list(names) for local in self._aliases.get(name, ())}
        if names & self._handed_around:
            return self._all
        # Calls of an expression without a name (`nets[kind](x)`) may reach anything.
        return [call for name in (*names, "") for call in self._named(name)]

    def _named(self, name: str) -> list[Call]:
        return [
            (call, module) for module in self._project.modules for call in module.calls_named(name)
        ]

    @cached_property
    def _parents(self) -> dict[FunctionNode, ast.AST]:
        return {
            node: module.parents[node]
            for module in self._project.modules
            for node in module.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef)
        }

    @cached_property
    def _all(self) -> list[Call]:
        return [(call, module) for module in self._project.modules for call in module.calls]

    @cached_property
    def _calls_of_objects(self) -> list[Call]:
        """Calls of something that may be an object: an attribute somebody assigns, or a local or global name."""
        attributes = {
            name for module in self._project.modules for _, name in module.self_assignments
        }
        attributes |= {"forward", "__call__"}
        return [
            (call, module)
            for call, module in self._all
            if not isinstance(call.func, ast.Attribute) or call.func.attr in attributes
        ]

    @cached_property
    def _defined(self) -> frozenset[str]:
        return frozenset(
            node.name
            for module in self._project.modules
            for node in module.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        )

    @cached_property
    def _aliases(self) -> dict[str, set[str]]:
        """The other names a function or class goes by: ``import ... as``, and assignments that mention it."""
        aliases: dict[str, set[str]] = {}
        for module in self._project.modules:
            for scope in module.scopes.by_node.values():
                for local, bindings in scope.bindings.items():
                    for binding in bindings:
                        source = binding.source
                        if isinstance(source, Imported) and source.attribute in self._defined:
                            aliases.setdefault(source.attribute, set()).add(local)
        for name, node, module in self._mentions:
            statement = module.statement(node)
            if isinstance(statement, ast.Assign) and not _is_given(node, module):
                aliases.setdefault(name, set()).update(
                    last_identifier(target) for target in statement.targets
                )
        return aliases

    @cached_property
    def _handed_around(self) -> frozenset[str]:
        """The functions and classes that are passed to a call, returned or kept in another expression."""
        return frozenset(
            name
            for name, node, module in self._mentions
            if not _is_type_check(node, module)
            and (
                _is_given(node, module)
                or not isinstance(module.statement(node), ast.Assign | ast.ClassDef)
            )
        )

    @cached_property
    def _mentions(self) -> list[tuple[str, ast.expr, Module]]:
        """Where a function or class defined in the project is named without being called."""
        defined = self._defined
        return [
            (name, node, module)
            for module in self._project.modules
            for node in module.nodes_of(ast.Name, ast.Attribute)
            if (name := last_identifier(node)) in defined
            and isinstance(node.ctx, ast.Load)
            and not _is_called_or_qualifies(node, module)
        ]

    def _with_subclasses(self, name: str) -> set[str]:
        found = {name}
        classes = [
            (node.name, {last_identifier(base) for base in node.bases})
            for module in self._project.modules
            for node in module.nodes_of(ast.ClassDef)
        ]
        while grown := {name for name, bases in classes if bases & found} - found:
            found |= grown
        return found


def _is_called_or_qualifies(node: ast.expr, module: Module) -> bool:
    parent = module.parents[node]
    if isinstance(parent, ast.Call) and parent.func is node:
        return True
    return isinstance(parent, ast.Attribute)


def _is_given(node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is given to a call, or part of what is: ``net = ResNet(Block, [3, 4, 6, 3])``."""
    inner: ast.AST = node
    for outer in module.ancestors(node):
        if isinstance(outer, ast.Call) and inner is not outer.func:
            return True
        if isinstance(outer, ast.stmt):
            return False
        inner = outer
    return False


def _is_type_check(node: ast.expr, module: Module) -> bool:
    """Whether ``node`` only names a type: in ``isinstance`` or ``super``, an annotation or a decorator."""
    parent = module.parents[node]
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
        return parent.func.id in {"isinstance", "issubclass", "super"}
    return isinstance(parent, ast.arg | ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign)
