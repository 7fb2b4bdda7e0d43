"""What only one of several processes should do: print, log, save."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ...rewriting.edits import (
    FileEdit,
    InsertBefore,
    ReplaceExpression,
    ReplaceStatement,
    SetArgument,
    Span,
    Wrap,
)
from ..editing.free_names import free_name
from ..editing.references import quoted
from ..facts import Fact
from ..program.syntax import Module
from ..syncs.telling import RUN, Telling, tells
from ..values.resolver import Resolver
from .process_names import Place, ProcessNames

_BARS = frozenset(
    {"tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tqdm.std.tqdm", "tqdm.trange"}
)


@dataclass(frozen=True, eq=False)
class RankZeroAction(Fact):
    """Sibling statements that only one process should run; ``node`` is the first."""

    node: ast.stmt
    last: ast.stmt

    @property
    def statements(self) -> list[ast.stmt]:
        """All of them."""
        block = self.module.block(self.node)
        return block[block.index(self.node) : block.index(self.last) + 1]


@dataclass(frozen=True, eq=False)
class ToldResult(Fact):
    """The statement ``node`` tells an ``argument`` that runs a network, which all processes do together."""

    node: ast.Expr
    argument: ast.expr

    def edit(self, names: ProcessNames) -> FileEdit | None:
        """The edit by which all compute the argument, and the first process tells it."""
        module, call = self.module, self.node.value
        name = free_name(module, ("told", "result", "told_result"))
        if name is None:
            return None
        whole, part = module.code(call), module.code(self.argument)
        if whole.count(part) != 1:
            return None
        row = whole.replace(part, name)
        code = f"{name} = {part}\nif {names.name(Place.RANK, module)} == 0:\n    {row}"
        return FileEdit(module.path, ReplaceStatement(module.span(self.node), code))


def find_told_results(
    resolver: Resolver, functions: Collection[ast.AST], left_out: Collection[ast.AST]
) -> tuple[ToldResult, ...]:
    """The statements that tell what they let a network compute: ``print(evaluate(model))``."""
    found: list[ToldResult] = []
    for module in resolver.project.modules:
        telling = Telling(resolver, module, left_out)
        for node in module.nodes_of(ast.Expr):
            inside = module.function(node)
            runs = inside in functions if inside else module is resolver.project.entry
            if runs and node not in left_out and inside not in left_out:
                argument = telling.told_result(node)
                if argument is not None:
                    found.append(ToldResult(module, node, argument))
    return tuple(found)


def find_rank_zero_actions(
    resolver: Resolver,
    functions: Collection[ast.AST],
    left_out: Collection[ast.AST],
    opened: Collection[ast.AST] = (),
    edits_of_all: Iterable[FileEdit] = (),
) -> tuple[RankZeroAction, ...]:
    """The runs of statements that only tell or save something, in the modules' own code and in ``functions``.

    ``left_out`` are nodes in which every process has to do all there is, ``opened`` conditions under which it has to do
    something besides, and so it has where ``edits_of_all`` insert something.
    """
    found: list[RankZeroAction] = []
    apart = {(e.path, e.edit.statement) for e in edits_of_all if isinstance(e.edit, InsertBefore)}
    for module in resolver.project.modules:
        finder = _Finder(Telling(resolver, module, left_out), module, left_out, opened, apart)
        if module is resolver.project.entry:
            found += finder.in_block(module.tree.body)
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef) and node in functions and node not in left_out:
                if tells(resolver, node, module):
                    continue  # where it is called
                found += finder.in_block(node.body)
    return tuple(action for action in found if not _is_of_first(action))


def _is_of_first(action: RankZeroAction) -> bool:
    """Whether the first process alone does it already: another script's change of a file that they share."""
    test = action.node.test if isinstance(action.node, ast.If) else None
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        test = test.values[0]
    first = f"{Place.RANK.name} == 0"
    return action.node is action.last and test is not None and ast.unparse(test) == first


def rank_zero_edits(
    actions: Iterable[RankZeroAction], ahead: Mapping[RankZeroAction, str], names: ProcessNames
) -> Iterator[FileEdit]:
    """The edits that let only the first process run ``actions``, each below the statements that all run ``ahead`` of it."""
    for action in actions:
        module, first = action.module, action.node
        is_first = f"{names.name(Place.RANK, module)} == 0"
        alone = first is action.last and action not in ahead
        if alone and isinstance(first, ast.If) and not first.orelse:
            test = first.test
            code = module.code(test)
            if (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)) or "\n" in code:
                code = f"({code})"
            edit = ReplaceExpression(module.span(test), f"{is_first} and {code}")
        else:
            header = "\n".join([*filter(None, [ahead.get(action)]), f"if {is_first}:"])
            edit = Wrap(module.span(first), module.span(action.last), header)
        yield FileEdit(module.path, edit)


def progress_bar_edits(
    resolver: Resolver, functions: Collection[ast.AST], names: ProcessNames
) -> Iterator[FileEdit]:
    """The edits that let only the first process show its progress bars."""
    for module in resolver.project.modules:
        for call in module.calls:
            shown = resolver.names(call.func, module)
            if not shown or not shown <= _BARS or not _runs(call, module, functions, resolver):
                continue
            if any(k.arg in {"disable", None} for k in call.keywords):
                continue
            rank = names.name(Place.RANK, module)
            yield FileEdit(module.path, SetArgument(module.span(call), "disable", f"{rank} > 0"))


def shared_service_edits(
    resolver: Resolver, functions: Collection[ast.AST], names: ProcessNames
) -> Iterator[FileEdit]:
    """The edits that let all processes make a folder or log a run, where only one can be the first.

    A disabled run of Weights & Biases answers like any other, and sends nothing.
    """
    for module in resolver.project.modules:
        for call in module.calls:
            called = resolver.names(call.func, module)
            if not _runs(call, module, functions, resolver):
                continue
            span, given = module.span(call), {k.arg: k.value for k in call.keywords}
            if called == frozenset({"os.makedirs"}) and not {"exist_ok", None} & given.keys():
                yield FileEdit(module.path, SetArgument(span, "exist_ok", "True", 2))
            elif called == frozenset({RUN}) and None not in given:
                mode = module.code(given["mode"]) if "mode" in given else "None"
                disabled = quoted(module, "disabled")
                code = f"{mode} if {names.name(Place.RANK, module)} == 0 else {disabled}"
                yield FileEdit(module.path, SetArgument(span, "mode", code))


def _runs(
    node: ast.AST, module: Module, functions: Collection[ast.AST], resolver: Resolver
) -> bool:
    function = module.function(node)
    if function is None:
        return module is resolver.project.entry
    return function in functions


class _Finder:
    def __init__(
        self,
        telling: Telling,
        module: Module,
        left_out: Collection[ast.AST],
        opened: Collection[ast.AST],
        apart: Collection[tuple[Path, Span]],
    ) -> None:
        self._telling, self._module = telling, module
        self._left_out, self._opened, self._apart = left_out, opened, apart

    def in_block(self, block: Sequence[ast.stmt]) -> Iterator[RankZeroAction]:
        run: list[ast.stmt] = []
        for statement in [*block, None]:
            action = statement if statement and self._is_action_in(block, statement) else None
            if run and (action is None or self._is_apart(action)):
                yield RankZeroAction(self._module, run[0], run[-1])
                run = []
            if action is not None:
                run.append(action)
                continue
            if statement is None or statement in self._left_out:
                continue
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for inner in _blocks(statement):
                yield from self.in_block(inner)

    def _is_apart(self, statement: ast.stmt) -> bool:
        return (self._module.path, self._module.span(statement)) in self._apart

    def _is_action_in(self, block: Sequence[ast.stmt], statement: ast.stmt) -> bool:
        if not self._telling.draws(statement):
            return self._is_action(statement)
        below = block[block.index(statement) + 1 :]
        drawn = takewhile(lambda s: self._telling.draws(s) or self._is_action(s), below)
        return self._telling.prepares(statement, [*drawn])

    def _is_action(self, statement: ast.stmt) -> bool:
        return statement not in self._opened and self._telling.is_action(statement)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(statement, field, [])
        if block:
            yield block
    for handler in getattr(statement, "handlers", []):
        yield handler.body
