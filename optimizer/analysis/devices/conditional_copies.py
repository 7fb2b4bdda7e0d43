"""Variables that an ``if`` copies to the device on some of its ways: below it they are there, or still on the host."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..editing.bound_names import binds_always, is_bound
from ..facts import Fact
from ..program.reaching import bindings_of, runs_later
from ..program.scopes import Assigned, Binding, Iterated, Parameter
from ..program.syntax import Module
from ..program.trees import is_name, walk
from ..values.resolver import Resolver
from .construction import VARIABLE
from .host_moves import assigned_pairs


@dataclass(frozen=True, eq=False)
class ConditionalCopy(Fact):
    """``if use_cuda: x = x.cuda()``: ``node`` is the ``if``, ``name`` the variable, ``calls`` copy it."""

    node: ast.If
    name: str
    calls: frozenset[ast.Call]

    def is_above(self, node: ast.AST) -> bool:
        """Whether ``node`` stands below the ``if``, in its block."""
        block = self.module.block(self.node)
        below = block[block.index(self.node) + 1 :]
        return any(part in below for part in (node, *self.module.ancestors(node)))


class ConditionalCopies:
    """Answers for one project; answers are remembered."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._found: dict[Module, list[ConditionalCopy]] = {}

    def of_call(self, call: ast.Call, module: Module) -> ConditionalCopy | None:
        """The one that ``call`` belongs to."""
        return next((copy for copy in self._of(module) if call in copy.calls), None)

    def above(self, use: ast.Name, binding: Binding, module: Module) -> ConditionalCopy | None:
        """The first one that the value of ``binding`` has gone through wherever ``use`` reads it."""
        found = module.scope(use).lookup(use.id)
        if found is None or runs_later(module.scope(use), found[0]):
            return None
        for copy in self._of(module):
            if copy.name == use.id and copy.is_above(use) and not copy.is_above(binding.node):
                owner = module.scope(copy.node).lookup(copy.name)
                if owner is not None and owner[0] is found[0]:
                    return copy
        return None

    def _of(self, module: Module) -> list[ConditionalCopy]:
        if module not in self._found:
            self._found[module] = list(self._find(module))
        return self._found[module]

    def _find(self, module: Module) -> Iterator[ConditionalCopy]:
        for test in module.nodes_of(ast.If):
            copies: dict[str, dict[ast.stmt, ast.Call]] = {}
            for statement in _own_statements(test):
                for target, value in assigned_pairs(statement):
                    call = self._copying(value, module)
                    if call is not None:
                        copies.setdefault(target.id, {})[statement] = call
            for name, calls in copies.items():
                copy = ConditionalCopy(module, test, name, frozenset(calls.values()))
                read_below = any(
                    isinstance(use.ctx, ast.Load) and copy.is_above(use)
                    for use in module.names_of(name)
                )
                if read_below and not binds_always(test, set(calls)):
                    yield copy

    def _copying(self, value: ast.expr, module: Module) -> ast.Call | None:
        """The call that copies, of ``x.cuda()``, ``x.to(device)`` and ``Variable(x.cuda())``."""
        match value:
            case ast.Call(ast.Attribute(attr="cuda" | "to")):
                return value
            case ast.Call(func, [ast.Call() as inner]) if (
                self._resolver.names(func, module) == VARIABLE
            ):
                return self._copying(inner, module)
            case _:
                return None


def are_fresh(bindings: Iterable[Binding], copy: ConditionalCopy) -> bool:
    """Whether ``bindings`` give the variable a new value each time the ``if`` is gone through."""
    module = copy.module
    loop = next(iter(module.loops(copy.node)), None)
    reads = [n for n in walk(copy.node) if is_name(n, copy.name) and isinstance(n.ctx, ast.Load)]
    copied = (binding for read in reads for binding in bindings_of(module, read))
    assigned: list[ast.AST] = []
    for binding in (*bindings, *copied):
        match binding.source:
            case Parameter() if loop is None:
                return True
            case Iterated() if module.statement(binding.node) is loop:
                return True
            case Assigned():
                assigned.append(binding.node)
            case _:
                pass
    within = loop or module.function(copy.node)
    if is_bound(module, assigned, copy.node, within):
        return True
    return not reads and binds_always(copy.node, {module.statement(node) for node in assigned})


def _own_statements(test: ast.If) -> Iterator[ast.Assign]:
    """The assignments on the ways through ``test`` that no further test, loop or the like decides on."""
    pending: list[ast.stmt] = [*test.body, *test.orelse]
    while pending:
        statement = pending.pop(0)
        if isinstance(statement, ast.Assign):
            yield statement
        elif isinstance(statement, ast.With):
            pending += statement.body
        elif test.orelse == [statement] and isinstance(statement, ast.If):
            yield from _own_statements(statement)
