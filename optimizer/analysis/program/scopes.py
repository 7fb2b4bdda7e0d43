"""Scopes and bindings: which statements give a name its value, and which of them a use can see.

The rules are Python's (https://docs.python.org/3/reference/executionmodel.html): functions, lambdas and
comprehensions open scopes, class bodies are not seen from the functions inside them, ``global`` and ``nonlocal``
move a binding outwards.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TypeAlias

from ..values.unpacking import Path, unpacked_names
from .parameters import named_parameters
from .trees import child_nodes, walk

ScopeNode: TypeAlias = (
    ast.Module
    | ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.Lambda
    | ast.ClassDef
    | ast.ListComp
    | ast.SetComp
    | ast.DictComp
    | ast.GeneratorExp
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Assigned:
    """``name = value``, or a part of it."""

    value: ast.expr
    path: Path = ()


@dataclass(frozen=True)
class Iterated:
    """``for name in iterable``, or a part of each element."""

    iterable: ast.expr
    path: Path = ()


@dataclass(frozen=True)
class Managed:
    """``with context as name``."""

    context: ast.expr
    path: Path = ()


@dataclass(frozen=True)
class Imported:
    """``import module``, ``import module as name`` or ``from module import attribute``.

    ``level`` counts the leading dots. ``import a.b`` binds ``a``: ``module`` is then ``"a"``.
    """

    module: str
    attribute: str | None
    level: int = 0


@dataclass(frozen=True)
class Parameter:
    """A parameter of ``function``; ``kind`` is ``"plain"``, ``"*"`` or ``"**"``."""

    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    kind: str = "plain"


@dataclass(frozen=True)
class Defined:
    """``def name`` or ``class name``."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Deleted:
    """``del name``: the name has no value from there on."""


@dataclass(frozen=True)
class Untraceable:
    """Bound in a way no value is traced through: ``x += 1``, ``except ... as``, ``match``."""

    why: str


BindingSource: TypeAlias = (
    Assigned | Iterated | Managed | Imported | Parameter | Defined | Deleted | Untraceable
)


@dataclass(frozen=True, eq=False)
class Binding:
    """One place where ``name`` gets a value; ``node`` is the name, alias, argument or definition itself."""

    name: str
    node: ast.AST
    source: BindingSource


@dataclass(frozen=True)
class StarImport:
    """``from module import *``."""

    node: ast.ImportFrom
    module: str
    level: int


@dataclass(eq=False)
class Scope:
    """The names one scope binds. Filled by :class:`ScopeTree`, then only read."""

    node: ScopeNode
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict[str, list[Binding]])
    star_imports: list[StarImport] = field(default_factory=list[StarImport])
    outer_names: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @property
    def root(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def lookup(self, name: str) -> tuple[Scope, list[Binding]] | None:
        """The scope that binds ``name`` as seen from here, and its bindings; None for builtins and stars."""
        scope: Scope | None = self
        while scope is not None:
            if scope.outer_names.get(name) == "global":
                scope = scope.root
            visible = not scope.is_class or scope is self
            if visible and name in scope.bindings:
                return scope, scope.bindings[name]
            scope = scope.parent
        return None

    def bind(self, binding: Binding) -> None:
        where = self.outer_names.get(binding.name)
        scope = self
        if where == "global":
            scope = self.root
        elif where == "nonlocal" and self.parent is not None:
            scope = self.parent
        scope.bindings.setdefault(binding.name, []).append(binding)


@dataclass(frozen=True, eq=False)
class ScopeTree:
    """The scopes of a file by the node that opens them."""

    by_node: dict[ast.AST, Scope]

    @staticmethod
    def of(tree: ast.Module, reaches_out: bool = True) -> ScopeTree:
        """``reaches_out`` is False where the file has no ``global`` or ``nonlocal`` statement."""
        builder = _ScopeBuilder(tree, reaches_out)
        for statement in tree.body:
            builder.visit(statement)
        return ScopeTree(builder.by_node)

    def of_node(self, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Scope:
        """The scope in which ``node``, as an expression or statement, is evaluated.

        A function's decorators, defaults and annotations, and a comprehension's first iterable, belong to the
        scope around it.
        """
        child, current = node, parents.get(node)
        while current is not None:
            if current in self.by_node and not _evaluated_outside(current, child):
                return self.by_node[current]
            child, current = current, parents.get(current)
        return self.by_node[child]


def _evaluated_outside(scope_node: ast.AST, child: ast.AST) -> bool:
    if isinstance(scope_node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return not isinstance(child, ast.stmt)
    if isinstance(scope_node, ast.Lambda):
        return child is scope_node.args
    if isinstance(scope_node, ast.ClassDef):
        return not isinstance(child, ast.stmt)
    return False


class _ScopeBuilder(ast.NodeVisitor):
    def __init__(self, tree: ast.Module, reaches_out: bool) -> None:
        self._reaches_out = reaches_out
        self.scope = Scope(tree, None)
        self.by_node: dict[ast.AST, Scope] = {tree: self.scope}

    def generic_visit(self, node: ast.AST) -> None:
        for child in child_nodes(node):
            self.visit(child)

    def _bind(self, name: str, node: ast.AST, source: BindingSource) -> None:
        self.scope.bind(Binding(name, node, source))

    def _bind_target(
        self, target: ast.expr, make: type[Assigned | Iterated | Managed], value: ast.expr
    ) -> None:
        for node, path in unpacked_names(target):
            self._bind(node.id, node, make(value, path))

    def _enter(self, node: ScopeNode, body: list[ast.stmt] | list[ast.expr]) -> None:
        outer, self.scope = self.scope, Scope(node, self.scope)
        self.by_node[node] = self.scope
        if isinstance(node, _FUNCTIONS):
            self._bind_parameters(node)
        if self._reaches_out and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._declare_outer_names(node)
        for child in body:
            self.visit(child)
        self.scope = outer

    def _declare_outer_names(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for node in walk(function):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                kind = "global" if isinstance(node, ast.Global) else "nonlocal"
                self.scope.outer_names.update(dict.fromkeys(node.names, kind))

    def _bind_parameters(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    ) -> None:
        arguments = function.args
        for arg in named_parameters(function):
            self._bind(arg.arg, arg, Parameter(function))
        if arguments.vararg:
            self._bind(arguments.vararg.arg, arguments.vararg, Parameter(function, "*"))
        if arguments.kwarg:
            self._bind(arguments.kwarg.arg, arguments.kwarg, Parameter(function, "**"))

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._bind(node.name, node, Defined(node))
        for outside in [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]:
            if outside is not None:
                self.visit(outside)
        self._enter(node, node.body)

    visit_FunctionDef = _visit_function
    visit_AsyncFunctionDef = _visit_function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._enter(node, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name, node, Defined(node))
        for outside in [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]:
            self.visit(outside)
        self._enter(node, node.body)

    def _visit_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> None:
        outer, self.scope = self.scope, Scope(node, self.scope)
        self.by_node[node] = self.scope
        for generator in node.generators:
            self._bind_target(generator.target, Iterated, generator.iter)
        self.generic_visit(node)
        self.scope = outer

    visit_ListComp = _visit_comprehension
    visit_SetComp = _visit_comprehension
    visit_DictComp = _visit_comprehension
    visit_GeneratorExp = _visit_comprehension

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._bind_target(target, Assigned, node.value)
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._bind_target(node.target, Assigned, node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            for name, _ in unpacked_names(target):
                self._bind(name.id, name, Deleted())
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            self._bind(node.target.id, node.target, Untraceable("augmented assignment"))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        inner = self.scope
        while isinstance(self.scope.node, _COMPREHENSIONS) and self.scope.parent is not None:
            self.scope = self.scope.parent
        self._bind_target(node.target, Assigned, node.value)
        self.scope = inner

    def _visit_for(self, node: ast.For | ast.AsyncFor) -> None:
        self._bind_target(node.target, Iterated, node.iter)
        self.generic_visit(node)

    visit_For = _visit_for
    visit_AsyncFor = _visit_for

    def _visit_with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            if item.optional_vars is not None:
                self._bind_target(item.optional_vars, Managed, item.context_expr)
        self.generic_visit(node)

    visit_With = _visit_with
    visit_AsyncWith = _visit_with

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname:
                self._bind(alias.asname, alias, Imported(alias.name, None))
            else:
                top = alias.name.split(".")[0]
                self._bind(top, alias, Imported(top, None))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.scope.star_imports.append(StarImport(node, node.module or "", node.level))
            else:
                source = Imported(node.module or "", alias.name, node.level)
                self._bind(alias.asname or alias.name, alias, source)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._bind(node.name, node, Untraceable("caught exception"))
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self._bind(node.name, node, Untraceable("match pattern"))
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self._bind(node.name, node, Untraceable("match pattern"))
