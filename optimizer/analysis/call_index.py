"""Which calls of a project may reach a function, judged by names alone: a superset, cheap to ask for."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from .project import Project
from .scopes import Imported
from .syntax import FunctionNode, Module, last_identifier
from .values import Function

Call = tuple[ast.Call, Module]
_ALL, _OBJECTS = "<all>", "<objects>"


class CallIndex:
    """The calls of ``project`` by the last identifier of what they call.

    In large projects a function has thousands of candidates, asked for over and over: a call is one no longer once it
    is :meth:`settled <settle>` what it reaches.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._kinds: dict[FunctionNode, tuple[str, ...]] = {}
        self._settled: defaultdict[ast.AST, list[tuple[ast.Call, Module, bool]]] = defaultdict(list)

    def candidates(self, function: FunctionNode) -> list[Call]:
        """Every call that may reach ``function`` and is not settled."""
        return [item for kind in self._kinds_for(function) for item in self._open[kind].items()]

    def settle(self, call: ast.Call, module: Module, callees: Iterable[Function]) -> None:
        """Remember that ``call`` reaches ``callees`` and nothing else."""
        for callee in callees:
            self._settled[callee.node].append((call, module, callee.bound))
        for kind in self._kinds_of(call):
            self._open[kind].pop(call, None)

    def settled(self, function: FunctionNode) -> list[tuple[ast.Call, Module, bool]]:
        """The settled calls that reach ``function``, and whether an instance fills its first parameter."""
        kinds = self._kinds_for(function)
        return [
            site
            for site in self._settled.get(function, ())
            if any(kind in kinds for kind in self._kinds_of(site[0]))
        ]

    @cached_property
    def order(self) -> dict[ast.Call, int]:
        """The place of each call among all of the project, file by file."""
        calls = (call for module in self._project.modules for call in module.calls)
        return {call: place for place, call in enumerate(calls)}

    @cached_property
    def _open(self) -> defaultdict[str, dict[ast.Call, Module]]:
        """The calls that are not settled, by kind: all, those of objects, and those of each name."""
        found = defaultdict[str, dict[ast.Call, Module]](dict)
        for module in self._project.modules:
            for call in module.calls:
                for kind in self._kinds_of(call):
                    found[kind][call] = module
        return found

    def _kinds_of(self, call: ast.Call) -> Iterator[str]:
        yield _ALL
        if not isinstance(call.func, ast.Attribute) or call.func.attr in self._kept_attributes:
            yield _OBJECTS
        yield last_identifier(call.func)

    def _kinds_for(self, function: FunctionNode) -> tuple[str, ...]:
        """The kinds of calls that may reach ``function``."""
        known = self._kinds.get(function)
        if known is None:
            known = self._kinds[function] = self._find_kinds(function)
        return known

    def _find_kinds(self, function: FunctionNode) -> tuple[str, ...]:
        if function.name in {"forward", "__call__"}:
            return (_OBJECTS,)
        names = {function.name}
        owner = self._parents.get(function)
        if function.name == "__init__" and isinstance(owner, ast.ClassDef):
            names |= self._with_subclasses(owner.name)
        names |= {local for name in list(names) for local in self._aliases.get(name, ())}
        if names & self._handed_around:
            return (_ALL,)
        # Calls of an expression without a name (`nets[kind](x)`) may reach anything.
        return (*sorted(names), "")

    @cached_property
    def _parents(self) -> dict[FunctionNode, ast.AST]:
        return {
            node: module.parents[node]
            for module in self._project.modules
            for node in module.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef)
        }

    @cached_property
    def _kept_attributes(self) -> frozenset[str]:
        """The attributes that may be an object: somebody assigns them."""
        assigned = {name for module in self._project.modules for _, name in module.self_assignments}
        return frozenset(assigned | {"forward", "__call__"})

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
