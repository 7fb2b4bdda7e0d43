"""Which statements give a value its parts, within the body of one function or loop.

Variables are dotted names (``loss``, ``self.fake``): what is assigned to ``outputs`` also makes ``outputs.loss``. The flow
is that of one pass through the body; what an earlier pass left behind is not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ..calls.reach import lexical_nodes
from ..program.syntax import Module
from ..program.trees import position, walk

_MUTATING_METHODS = frozenset("append extend add add_ update insert copy_ mul_ div_ sub_".split())
_HOST_READS = frozenset({"item", "numpy", "tolist"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, eq=False)
class Definition:
    """A statement that gives ``name`` a value; ``replaces`` is false when the old value stays part of the new one."""

    name: str
    statement: ast.stmt
    replaces: bool


@dataclass(frozen=True, eq=False)
class Flow:
    """The statements of ``body``, nested ones included, functions defined inside left out."""

    module: Module
    body: tuple[ast.stmt, ...]

    @cached_property
    def statements(self) -> tuple[ast.stmt, ...]:
        """Every statement that runs with the body, in source order."""
        return tuple(
            node
            for node in lexical_nodes(self.body)
            if isinstance(node, ast.stmt) and not isinstance(node, _DEFINITIONS)
        )

    @cached_property
    def definitions(self) -> tuple[Definition, ...]:
        return tuple(found for statement in self.statements for found in _definitions(statement))

    def sources(self, expression: ast.AST, at: ast.stmt) -> Iterator[ast.stmt]:
        """The statements of the body that may give the variables in ``expression``, read by ``at``, their value."""
        return self.sources_of(expression, own_nodes(expression), at)

    def sources_of(
        self, expression: ast.AST, nodes: Iterable[ast.AST], at: ast.stmt
    ) -> Iterator[ast.stmt]:
        """As :meth:`sources`, of the variables among ``nodes`` of ``expression`` alone."""
        names = read_names(nodes)
        if isinstance(expression, ast.AugAssign) and (base := _base(expression.target)):
            names.add(base)
        for name in sorted(names):
            yield from self._sources_of(name, at)

    def statements_behind(self, expression: ast.AST, at: ast.stmt) -> set[ast.stmt]:
        """All statements that have a part in ``expression``, through any number of variables."""
        return self._behind(expression, at, lambda _: False)

    def differentiable_behind(self, expression: ast.AST, at: ast.stmt) -> set[ast.stmt]:
        """Those that may have a part in the gradient of ``expression``: none behind what is read to the host."""
        return self._behind(expression, at, _reads_to_host)

    def _behind(
        self, expression: ast.AST, at: ast.stmt, ends: Callable[[ast.stmt], bool]
    ) -> set[ast.stmt]:
        found: set[ast.stmt] = set()
        pending = list(self.sources(expression, at))
        while pending:
            statement = pending.pop()
            if statement not in found and not ends(statement):
                found.add(statement)
                pending.extend(self.sources(statement, statement))
        return found

    def _sources_of(self, name: str, at: ast.stmt) -> Iterator[ast.stmt]:
        around = {id(self.module.block(s)) for s in [at, *self._enclosing(at)]}
        for definition in reversed(self.definitions):
            statement = definition.statement
            if not _covers(definition.name, name) or statement is at:
                continue
            if position(statement) >= position(at):
                continue
            yield statement
            if definition.replaces and id(self.module.block(statement)) in around:
                return

    def _enclosing(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        for ancestor in self.module.ancestors(statement):
            if isinstance(ancestor, _DEFINITIONS):
                return
            if isinstance(ancestor, ast.stmt):
                yield ancestor


def dotted(node: ast.AST) -> str | None:
    """``a.b`` for the nodes of ``a.b``; None for anything but names and their attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else None
    return None


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of an expression or statement; of a compound statement only those of its header."""
    if isinstance(node, (ast.If, ast.While)):
        yield from walk(node.test)
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        yield from walk(node.iter)
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            yield from walk(item)
    elif isinstance(node, ast.Try):
        return
    else:
        yield from walk(node)


def read_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The dotted names read by ``nodes``, the longest chain of each."""
    found: set[str] = set()
    inner: set[ast.AST] = set()
    for node in nodes:
        if node in inner or not isinstance(node, (ast.Name, ast.Attribute)):
            continue
        name = dotted(node)
        if name is not None and isinstance(node.ctx, ast.Load):
            found.add(name)
            inner.update(walk(node))
    return found


def _covers(defined: str, read: str) -> bool:
    """Whether giving ``defined`` a value changes what ``read`` is (``out`` makes ``out.loss``, which is part of it)."""
    return defined == read or read.startswith(f"{defined}.") or defined.startswith(f"{read}.")


def _definitions(statement: ast.stmt) -> Iterator[Definition]:
    match statement:
        case ast.Assign(targets=targets):
            pass
        case ast.AnnAssign(target=target) | ast.For(target=target) | ast.AsyncFor(target=target):
            targets = [target]
        case ast.With(items=items) | ast.AsyncWith(items=items):
            targets = [item.optional_vars for item in items if item.optional_vars is not None]
        case _:
            targets = list[ast.expr]()
    for target in targets:
        yield from _targets(target, statement)
    changed = _changed(statement)
    name = _base(changed) if changed is not None else None
    if name is not None:
        yield Definition(name, statement, False)
    for node in own_nodes(statement):
        if isinstance(node, ast.NamedExpr):
            yield Definition(node.target.id, statement, True)


def _changed(statement: ast.stmt) -> ast.expr | None:
    """What ``x += y`` and ``x.append(y)`` change."""
    if isinstance(statement, ast.AugAssign):
        return statement.target
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr in _MUTATING_METHODS:
            return function.value
    return None


def _targets(target: ast.expr, statement: ast.stmt) -> Iterator[Definition]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _targets(element, statement)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, statement)
    else:
        name = _base(target)
        if name is not None:
            yield Definition(name, statement, not isinstance(target, ast.Subscript))


def _base(target: ast.expr) -> str | None:
    while isinstance(target, ast.Subscript):
        target = target.value
    return dotted(target)


def _reads_to_host(statement: ast.stmt) -> bool:
    """Whether ``x = tensor.cpu().numpy()`` and the like is all that the statement does."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in _HOST_READS
    )
