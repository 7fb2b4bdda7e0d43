"""The ways through a training step on which a GradScaler has unscaled or stepped, and has not been updated yet."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

from ..program.trees import walk
from ..training.steps import StepCode

Pending: TypeAlias = frozenset[bool]
"""Whether the scaler has unscaled or stepped since its last update: on some ways yes, on others no. Empty where no way leads."""

_NOWHERE: Pending = frozenset[bool]()
_UPDATED: Pending = frozenset({False})
PENDING: Final[Pending] = frozenset({True})
"""The scaler has to be updated, whichever way was taken."""

_Exit: TypeAlias = ast.Continue | ast.Break | ast.Return | ast.Raise


class PendingSteps:
    """Follows ``step`` where ``stepping`` statements step optimizers and the scaler is updated below those of ``updated``.

    Above those of ``unscaled`` it unscales gradients, which it refuses to do twice between updates.
    ``at_updates`` and ``at_exits`` are what is pending below the former, and where a pass is left or the training goes on
    elsewhere.
    """

    def __init__(
        self,
        step: StepCode,
        stepping: Collection[ast.stmt],
        unscaled: Collection[ast.stmt],
        updated: Collection[ast.stmt],
    ) -> None:
        self._stepping = stepping
        self._unscaled = unscaled
        self._updated = updated
        self._backwards = {backward.node for backward in step.backwards}
        self._is_caught = any(
            isinstance(ancestor, ast.Try) and ancestor.handlers
            for ancestor in step.module.ancestors(step.node)
        )
        self._loops: list[_Loop] = []
        self._tries: list[set[bool]] = []
        self.at_updates: dict[ast.stmt, Pending] = {}
        self.at_exits: dict[_Exit, Pending] = {}
        if isinstance(step.node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.at_end = self._block(step.body, _UPDATED)
        else:
            self.at_end = self._loop(step.node, _UPDATED)

    def _block(self, block: Iterable[ast.stmt], pending: Pending) -> Pending:
        for statement in block:
            if not pending:
                break
            if statement in self._unscaled:
                pending = PENDING
            pending = self._statement(statement, pending)
            if statement in self._updated:
                self.at_updates[statement] = self.at_updates.get(statement, _NOWHERE) | pending
                pending = _UPDATED if pending else _NOWHERE
            for caught in self._tries:
                caught.update(pending)
        return pending

    def _statement(self, statement: ast.stmt, pending: Pending) -> Pending:
        match statement:
            case ast.If(body=body, orelse=orelse):
                return self._block(body, pending) | self._block(orelse, pending)
            case ast.Match(cases=cases):
                return pending.union(*(self._block(case.body, pending) for case in cases))
            case ast.With(body=body) | ast.AsyncWith(body=body):
                return self._block(body, pending)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(statement, pending)
            case ast.Try():
                return self._try(statement, pending)
            case ast.Continue() | ast.Break() | ast.Return() | ast.Raise():
                self._leave(statement, pending)
                return _NOWHERE
            case _:
                return PENDING if statement in self._stepping else pending

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, pending: Pending) -> Pending:
        """A loop that backpropagates is one of passes; another is taken to run, as one over optimizers does."""
        loop = _Loop(is_of_passes=not self._backwards.isdisjoint(walk(node)))
        self._loops.append(loop)
        first = self._block(node.body, pending) | loop.again
        last = self._block(node.body, first | pending) | loop.again
        self._loops.pop()
        is_run = not loop.is_of_passes and not isinstance(node, ast.While)
        return self._block(node.orelse, last if is_run else last | pending) | loop.after

    def _try(self, node: ast.Try, pending: Pending) -> Pending:
        caught = set(pending)
        self._tries.append(caught)
        ends = self._block(node.body, pending)
        self._tries.pop()
        ends = self._block(node.orelse, ends)
        for handler in node.handlers:
            ends |= self._block(handler.body, frozenset(caught))
        return self._block(node.finalbody, ends) if node.finalbody else ends

    def _leave(self, exit_: _Exit, pending: Pending) -> None:
        loop = self._loops[-1] if self._loops else None
        match exit_:
            case ast.Continue() | ast.Break() if loop is not None:
                if not loop.is_of_passes:
                    if isinstance(exit_, ast.Continue):
                        loop.again |= pending
                    else:
                        loop.after |= pending
                    return
                # The way goes on with the scaler updated: what is pending here is the caller's to answer for.
                if isinstance(exit_, ast.Break):
                    loop.after |= _UPDATED
            case ast.Raise() if self._tries or not self._is_caught:
                return
            case _:
                pass
        self.at_exits[exit_] = self.at_exits.get(exit_, _NOWHERE) | pending


class _Loop:
    """What is pending where a loop goes on with its next pass, and where it is left."""

    def __init__(self, *, is_of_passes: bool) -> None:
        self.is_of_passes = is_of_passes
        self.again: Pending = _NOWHERE
        self.after: Pending = _NOWHERE
