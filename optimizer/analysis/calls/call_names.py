"""Which calls of a project may reach a function, judged by names alone: a superset, cheap to ask for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from ..program.parameters import positional_parameters
from ..program.project import Project
from ..program.syntax import FunctionNode, Module, is_decorated, last_identifier
from ..program.trees import walk
from ..values.unpacking import unpacked_targets
from .leftovers import Leftovers
from .plain_functions import PlainFunctions

ALL, _OBJECTS = "<all>", "<objects>"


class CallNames:
    """Sorts the calls of ``project`` into kinds, most by the last identifier of what they call.

    A call is of several kinds; what calls a function is of one of the kinds for it.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._plain = PlainFunctions(project)
        self.leftovers = Leftovers(project, self._plain)
        self._kinds: dict[FunctionNode, frozenset[str]] = {}

    def kinds_of(self, call: ast.Call, module: Module) -> Iterator[str]:
        """What kinds ``call`` is of: all, calls of objects, those of a name."""
        yield ALL
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr in self._kept_attributes:
            yield _OBJECTS
        name = last_identifier(function)
        yield name
        if self._plain.may_call(function, module):
            yield f"{name}()"

    def kinds_for(self, function: FunctionNode) -> frozenset[str]:
        """The kinds of calls that may reach ``function``."""
        known = self._kinds.get(function)
        if known is None:
            known = self._kinds[function] = self._find_kinds(function)
        return known

    def _find_kinds(self, function: FunctionNode) -> frozenset[str]:
        if function.name in {"forward", "__call__"}:
            return frozenset([_OBJECTS])
        names = {function.name}
        if function in self._plain:
            return frozenset(f"{name}()" for name in self._plain.names(function))
        owner = self._parents.get(function)
        if function.name == "__init__" and isinstance(owner, ast.ClassDef):
            names |= self._with_subclasses(owner.name) | self._own_classes
        given = {local for name in names for local in self._aliases.get(name, ())}
        while given - names:
            names |= given
            given = {local for name in given for local in self._renamed.get(name, ())}
        if names & self._handed_around:
            return frozenset([ALL])
        # Calls of an expression without a name (`nets[kind](x)`) may reach anything.
        return frozenset([*names, ""])

    @cached_property
    def _parents(self) -> dict[FunctionNode, ast.AST]:
        return {
            node: module.parents[node]
            for module in self._project.modules
            for node in module.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef)
        }

    @cached_property
    def _own_classes(self) -> frozenset[str]:
        """What class methods call their class: ``cls``."""
        return frozenset(
            parameter.arg
            for node in self._parents
            if is_decorated(node, "classmethod")
            for parameter in positional_parameters(node)[:1]
        )

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
        aliases = {name: set(local) for name, local in self._plain.imported_as.items()}
        for name, node, module in self._mentions:
            statement = module.statement(node)
            if isinstance(statement, ast.Assign) and not _is_given(node, module):
                aliases.setdefault(name, set()).update(
                    last_identifier(target) for target in statement.targets
                )
        return aliases

    @cached_property
    def _renamed(self) -> dict[str, set[str]]:
        """The names that take over from another name for functions and classes: ``Data = kinds[args.data]``."""
        aliases = {alias for names in self._aliases.values() for alias in names}
        renamed: dict[str, set[str]] = {}
        assignments = self._assignments_by_name
        while aliases:
            for name in aliases:
                renamed[name] = assignments.get(name, set())
            aliases = {n for names in renamed.values() for n in names} - renamed.keys()
        return renamed

    @cached_property
    def _assignments_by_name(self) -> dict[str, set[str]]:
        """The names that are assigned from an expression with a name in it; what a call of it gives is something else."""
        found: dict[str, set[str]] = {}
        for module in self._project.modules:
            for statement in module.nodes_of(ast.Assign, ast.AnnAssign, ast.For):
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                )
                source = statement.iter if isinstance(statement, ast.For) else statement.value
                named = {last_identifier(t) for each in targets for t, _ in unpacked_targets(each)}
                for node in walk(source) if source is not None else ():
                    if isinstance(node, ast.Name | ast.Attribute) and not _is_made(node, module):
                        found.setdefault(last_identifier(node), set()).update(named)
        return found

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
        pending = [name]
        while pending:
            new = self._derived.get(pending.pop(), set()) - found
            found |= new
            pending += new
        return found

    @cached_property
    def _derived(self) -> dict[str, set[str]]:
        """The names of the classes that derive from one of a name."""
        found: dict[str, set[str]] = {}
        for module in self._project.modules:
            for node in module.nodes_of(ast.ClassDef):
                for base in node.bases:
                    found.setdefault(last_identifier(base), set()).add(node.name)
        return found


def _is_called_or_qualifies(node: ast.expr, module: Module) -> bool:
    parent = module.parents[node]
    if isinstance(parent, ast.Call) and parent.func is node:
        return True
    return isinstance(parent, ast.Attribute)


def _is_made(node: ast.expr, module: Module) -> bool:
    """Whether ``node``, or an element of it, is called: ``net = kinds[name](16)`` is no longer one of ``kinds``."""
    parent = module.parents[node]
    while isinstance(parent, ast.Subscript) and parent.value is node:
        node, parent = parent, module.parents[parent]
    return isinstance(parent, ast.Call) and parent.func is node


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
