"""Figures that the first process tells inside a training loop or behind it, and of which every process has a share.

A figure is understood when all that differs in it between the processes is a running sum, a mean or sum over the batch,
a number of samples, or a time. What then has to be exchanged is exchanged ahead of the telling, at a place that all
processes come to together: under conditions that do not diverge, outside of inner loops and ``try``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..calls.reach import lexical_nodes
from ..facts import Fact, Loop
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned
from ..program.trees import walk
from ..syncs.meters import appends_to_list, gives_to_meter
from ..syncs.telling import Telling
from ..values.resolver import Resolver
from .batch_shares import Share
from .divergence import Divergence
from .figure_parts import FigureParts, Number, Parts
from .told_expressions import figures

_KEEPS = frozenset({"builtins.print", "torch.save"})
"""What shows or keeps a tensor as it is, with its graph."""


@dataclass(frozen=True, eq=False)
class SharedNumber:
    """A number of one process of which all have a ``share``: ``nodes`` are where it is read.

    ``may_join``: it is a single number, so that several of them can be exchanged together.
    """

    code: str
    name: str
    share: Share
    may_join: bool
    nodes: tuple[ast.expr, ...]


@dataclass(frozen=True, eq=False)
class ToldTogether(Fact):
    """Sibling statements of which ``node`` is the first: they tell the ``numbers``, which none of them changes."""

    node: ast.stmt
    statements: tuple[ast.stmt, ...]
    numbers: tuple[SharedNumber, ...]


@dataclass(frozen=True, eq=False)
class ToldFigures(Fact):
    """What a training loop tells that is understood.

    ``opened`` are conditions under which something is exchanged, ``sizes`` numbers of samples of which all processes have
    equal ones, ``settled`` the expressions that all processes are right about after that, ``given`` the
    statements by which objects get what all processes have in common.
    """

    together: tuple[ToldTogether, ...] = ()
    opened: frozenset[ast.stmt] = frozenset()
    sizes: tuple[ast.expr, ...] = ()
    settled: frozenset[ast.AST] = frozenset()
    given: tuple[ast.stmt, ...] = ()


def find_told_figures(
    resolver: Resolver, loop: Loop, divergence: Divergence, telling: Telling
) -> ToldFigures:
    """The figures of ``loop`` that are understood, told in it or right behind it."""
    finder = _Finder(resolver, loop, divergence, telling)
    finder.look_in(loop.node.body)
    around = loop.module.block(loop.node)
    finder.look_in(around[around.index(loop.node) + 1 :])
    return ToldFigures(
        loop.module,
        loop.node,
        tuple(finder.together),
        frozenset(finder.opened),
        tuple(finder.sizes),
        frozenset(finder.settled),
        tuple(finder.given),
    )


class _Finder:
    def __init__(
        self, resolver: Resolver, loop: Loop, divergence: Divergence, telling: Telling
    ) -> None:
        self._resolver, self._loop, self._module = resolver, loop, loop.module
        self._divergence, self._telling = divergence, telling
        self._parts = FigureParts(resolver, loop, divergence)
        self.together: list[ToldTogether] = []
        self.opened: set[ast.stmt] = set()
        self.sizes: list[ast.expr] = []
        self.settled: set[ast.AST] = set()
        self.given: list[ast.stmt] = []
        self._gives: set[ast.stmt] = set()
        self._appends: set[ast.stmt] = set()

    def look_in(self, block: Sequence[ast.stmt]) -> None:
        """Look for figures in ``block``, which all processes come to together."""
        telling: list[ast.stmt] = []
        for statement in block:
            is_action = self._telling.is_action(statement)
            opens = isinstance(statement, ast.If) and not self._diverges(statement.test)
            if is_action and isinstance(statement, ast.Expr | ast.With):
                telling.append(statement)
            elif gives_to_meter(self._resolver, statement, self._module):
                self._gives.add(statement)
                telling.append(statement)
            elif appends_to_list(self._resolver, statement, self._module):
                self._gives.add(statement)
                self._appends.add(statement)
                telling.append(statement)
            elif isinstance(statement, ast.With) and not is_action:
                self.look_in(statement.body)
            elif isinstance(statement, ast.If) and opens:
                before = len(self.together)
                self.look_in(statement.body)
                self.look_in(statement.orelse)
                if len(self.together) > before:
                    self.opened.add(statement)
        if telling:
            self._tell(block, telling)

    def _tell(self, block: Sequence[ast.stmt], telling: Sequence[ast.stmt]) -> None:
        carriers = self._carrying(block, telling)
        self._parts.carrying.update(carriers.values())
        involved = sorted([*telling, *carriers.values()], key=block.index)
        found: list[tuple[ast.stmt, Parts]] = []
        understood_in = {s: dict(self._understood(s)) for s in involved}
        own = {s for s, parts in understood_in.items() if self._keeps_own(s, parts)}
        appended = self._appends & understood_in.keys()
        counts = any(p is not None and p.sizes for s in appended for p in understood_in[s].values())
        if counts and own & appended:
            own |= appended  # Nobody shall divide the sum of a share by the size of all.
        for statement in involved:
            if statement in own:
                continue
            parts = understood_in[statement]
            known = {figure: part for figure, part in parts.items() if part is not None}
            self.settled.update(known)
            understood = Parts()
            for part in known.values():
                understood.add(part)
            self.sizes += understood.sizes
            if understood.numbers:
                found.append((statement, understood))
                if statement in self._gives:
                    self.given.append(statement)
        self.together += self._grouped(block, found)

    def _keeps_own(self, statement: ast.stmt, parts: Mapping[ast.expr, Parts | None]) -> bool:
        """Whether the object that ``statement`` gives something goes on getting that of its own process."""
        if statement not in self._gives:
            return False
        known = [part for part in parts.values() if part is not None]
        # What a list of tensors is made for, to be trained on maybe, is not seen here.
        tensors = statement in self._appends and not all(map(_is_of_numbers, known))
        return len(known) < len(parts) or tensors or any(map(self._has_graph, known))

    def _understood(self, statement: ast.stmt) -> Iterator[tuple[ast.expr, Parts | None]]:
        """The figures of ``statement``, and what they are made of where that is understood and can be written."""
        for figure, formatted, call in self._figures(statement):
            made_of = self._parts.of(figure)
            if made_of is not None and (
                (not formatted and self._shows_tensor(made_of, call))
                or not all(map(self._parts.is_in_place, made_of.read()))
            ):
                made_of = None
            yield figure, made_of

    def _has_graph(self, made_of: Parts) -> bool:
        """Whether what is trained on is in ``made_of`` with its graph, which would be lost."""
        trained_on = {
            name.id
            for backward in self._loop.backwards
            for name in walk(backward.node.func)
            if isinstance(name, ast.Name)
        }
        return any(
            number.name in trained_on
            and not number.is_number
            and not any(getattr(n, "attr", None) in {"detach", "data"} for n in walk(number.node))
            for number in made_of.numbers
        )

    # Which statements tell

    def _carrying(
        self, block: Sequence[ast.stmt], telling: Sequence[ast.stmt]
    ) -> dict[str, ast.Assign]:
        """The assignments of ``block`` above ``telling`` that make what is told of what is understood, by their names."""
        found: dict[str, ast.Assign] = {}
        pending: list[ast.stmt] = [*telling]
        while pending:
            statement = pending.pop()
            for name in lexical_nodes([statement]):
                if not isinstance(name, ast.Name) or name.id in found:
                    continue
                assignment = self._assigned_above(name, statement, block)
                if assignment is not None and self._can_carry(assignment, name.id):
                    found[name.id] = assignment
                    pending.append(assignment)
        self._parts.carriers = found
        while True:
            lacking = [name for name, made in found.items() if not self._is_understood(made)]
            if not lacking:
                return found
            for name in lacking:
                del found[name]

    def _assigned_above(
        self, name: ast.Name, statement: ast.stmt, block: Sequence[ast.stmt]
    ) -> ast.Assign | None:
        known = self._module.scope(name).lookup(name.id)
        if known is None or not isinstance(name.ctx, ast.Load):
            return None
        seen = reaching_bindings(self._module, *known, self._module.scope(name), name)
        if len(seen) != 1 or not isinstance(seen[0].source, Assigned):
            return None
        made = self._module.statement(seen[0].node)
        plain = isinstance(made, ast.Assign) and made.targets == [seen[0].node]
        if not plain or made not in block or block.index(made) >= block.index(statement):
            return None
        return made if isinstance(made, ast.Assign) else None

    def _can_carry(self, assignment: ast.Assign, name: str) -> bool:
        """Whether ``assignment`` may give all processes the common number: nothing adds that up."""
        module = self._module
        if not any(self._diverges(figure) for figure, _ in figures(assignment.value)):
            return False
        uses = [use for use in module.names_of(name) if use is not assignment.targets[0]]
        return not any(
            isinstance(around, ast.AugAssign) or around is assignment
            for use in uses
            for around in module.ancestors(use)
        )

    def _is_understood(self, assignment: ast.Assign) -> bool:
        """Whether ``assignment`` makes texts and numbers that are understood, and no tensor that may be trained on."""
        return all(
            (made_of := self._parts.of(figure)) is not None
            and all(map(self._parts.is_in_place, made_of.read()))
            and (formatted or self._parts.can_be_carried(figure, made_of))
            for figure, formatted in figures(assignment.value)
        )

    def _figures(self, statement: ast.stmt) -> Iterator[tuple[ast.expr, bool, ast.Call | None]]:
        if isinstance(statement, ast.Assign):
            for figure, formatted in figures(statement.value):
                yield figure, formatted, None
            return
        for node in lexical_nodes([statement]):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                call = node.value
                acts = self._telling.acts(call) and not self._telling.is_bar(call)
                if not acts and node not in self._gives:
                    continue
                for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
                    for figure, formatted in figures(argument):
                        yield figure, formatted, call

    def _shows_tensor(self, made_of: Parts, call: ast.Call | None) -> bool:
        """Whether ``call`` shows or keeps what may be a tensor, as it is."""
        if call is None or not made_of.numbers:
            return False
        names = self._resolver.names(call.func, self._module)
        return bool(names & _KEEPS) and not all(number.is_number for number in made_of.numbers)

    # Which numbers are told together

    def _grouped(
        self, block: Sequence[ast.stmt], found: Sequence[tuple[ast.stmt, Parts]]
    ) -> Iterator[ToldTogether]:
        group: list[tuple[ast.stmt, Parts]] = []
        for statement, understood in found:
            if group:
                between = block[block.index(group[0][0]) : block.index(statement)]
                read = {
                    name.id
                    for number in understood.numbers
                    for name in walk(number.node)
                    if isinstance(name, ast.Name)
                }
                if any(map(read.__contains__, _changed(between))):
                    yield self._one_group(group)
                    group = []
            group.append((statement, understood))
        if group:
            yield self._one_group(group)

    def _one_group(self, group: Sequence[tuple[ast.stmt, Parts]]) -> ToldTogether:
        by_code: dict[str, list[Number]] = {}
        for _, understood in group:
            for number in understood.numbers:
                by_code.setdefault(ast.unparse(number.node), []).append(number)
        numbers = tuple(
            SharedNumber(
                self._module.code(first.node),
                first.name,
                first.share,
                first.is_single,
                tuple(number.node for number in [first, *others]),
            )
            for first, *others in by_code.values()
        )
        statements = tuple(statement for statement, _ in group)
        return ToldTogether(self._module, statements[0], statements, numbers)

    def _diverges(self, expression: ast.expr) -> bool:
        return self._divergence.of(expression, self._module)


def _is_of_numbers(made_of: Parts) -> bool:
    return all(number.is_number for number in made_of.numbers)


def _changed(statements: Collection[ast.stmt]) -> Iterator[str]:
    """The variables that ``statements`` bind, add to or change in place."""
    for node in lexical_nodes(statements):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if (
                method.endswith("_")
            ):
                yield name
            case _:
                pass
