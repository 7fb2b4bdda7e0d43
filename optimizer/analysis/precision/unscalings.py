"""Where a GradScaler unscales gradients: above what looks at them between the last backward pass and the update."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..facts import Fact
from ..program.statements import exclude_each_other
from ..program.syntax import Module
from ..program.trees import position
from ..training.steps import StepCode, Update
from .not_scalable import NotScalableError


@dataclass(frozen=True, eq=False)
class Unscaling(Fact):
    """Above the statement ``node`` the gradients of ``optimizer`` must be unscaled."""

    node: ast.stmt
    optimizer: ast.expr


def unscalings_of(step: StepCode) -> Iterable[Unscaling]:
    """Where gradients are looked at between the last backward and an update."""
    found: dict[tuple[str, ast.AST], tuple[Update, list[ast.stmt]]] = {}
    for reader in step.gradient_readers:
        for update in applying(step, reader):
            block = step.module.block(update.statement)
            if _holder(step.module, block, reader) is None:
                why = "gradients are looked at in steps, too, that the optimizer does not make"
                raise NotScalableError(step.module, reader, why)
            optimizer = step.module.code(update.optimizer)
            found.setdefault((optimizer, block[0]), (update, []))[1].append(reader)
    for update, readers in found.values():
        holder = _first_holder(step.module, step.module.block(update.statement), readers)
        yield Unscaling(step.module, holder, update.optimizer)


def _holder(module: Module, block: Sequence[ast.stmt], reader: ast.stmt) -> ast.stmt | None:
    """The statement of ``block`` that ``reader`` is, or is part of."""
    around = [reader, *module.ancestors(reader)]
    return next((s for s in around if isinstance(s, ast.stmt) and s in block), None)


def _first_holder(
    module: Module, block: Sequence[ast.stmt], readers: Sequence[ast.stmt]
) -> ast.stmt:
    """The statement to unscale above: the first of ``readers``, within the one branch that holds them all."""
    holders = [h for r in readers if (h := _holder(module, block, r)) is not None]
    first = min(holders, key=position)
    if not isinstance(first, ast.If) or first in readers or any(h is not first for h in holders):
        return first
    for branch in (first.body, first.orelse):
        if all(_holder(module, branch, reader) is not None for reader in readers):
            inner = _first_holder(module, branch, readers)
            return first if inner in branch and _is_elif(module, inner) else inner
    return first


def _is_elif(module: Module, statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and module.code(statement).startswith("elif")


def applying(step: StepCode, reader: ast.stmt) -> list[Update]:
    """The updates that come next after ``reader``, all up to the next backward."""
    here, module = position(reader), step.module
    reached = [u for u in step.updates if not exclude_each_other(module, reader, u.statement)]
    later = [update for update in reached if position(update.statement) > here]
    if not later:
        if reached and not any(_precedes(module, u.statement, reader) for u in reached):
            why = "gradients are looked at in steps, too, that the optimizer does not make"
            raise NotScalableError(module, reader, why)
        return []  # after the step, gradients are unscaled
    backwards = [at for b in step.backwards if (at := position(b.statement)) > here]
    if backwards and min(backwards) <= min(position(update.statement) for update in later):
        why = "gradients are looked at before the last backward pass of the step"
        raise NotScalableError(module, reader, why)
    end = min(backwards, default=(sys.maxsize, 0))
    return [update for update in later if position(update.statement) < end]


def _precedes(module: Module, earlier: ast.stmt, later: ast.stmt) -> bool:
    """Whether ``earlier`` has run wherever ``later`` does."""
    blocks = [module.block(s) for s in (later, *module.ancestors(later)) if isinstance(s, ast.stmt)]
    holder: ast.AST = earlier
    while isinstance(holder, ast.stmt):
        if any(holder in block for block in blocks):
            return True
        holder = module.parents[holder]
        if isinstance(holder, ast.If | ast.While | ast.Match):
            return False
    return False
