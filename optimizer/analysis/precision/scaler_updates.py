"""Where a GradScaler is updated: once in every pass in which an optimizer has stepped, whichever way the pass is left."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from ..calls.reach import reached_nodes
from ..facts import Fact
from ..program.statements import common_block, exclude_each_other
from ..program.syntax import Module
from ..program.trees import position, walk
from ..training.steps import StepCode, Update
from ..values.dataflow import Flow, own_nodes
from ..values.resolver import Resolver
from .not_scalable import NotScalableError
from .pending_steps import PENDING, PendingSteps
from .unscalings import Unscaling


@dataclass(frozen=True, eq=False)
class ScalerUpdate(Fact):
    """The scaler that stepped ``optimizer`` must be updated below the statement ``node``, or ``above`` it, where that leaves the pass."""

    node: ast.stmt
    optimizer: ast.expr
    above: bool = False


_UNCLEAR = "where the pass ends, an optimizer may or may not have stepped, which decides whether the scaler is updated"


def scaler_updates(
    resolver: Resolver, step: StepCode, unscalings: Sequence[Unscaling]
) -> Iterator[ScalerUpdate]:
    """Below the last update of each pass of a loop, and above what leaves it earlier."""
    below = [*_below_last(step)]
    _nothing_pending(resolver, step, below)
    yield from below
    pending = PendingSteps(
        step,
        stepping={update.statement for update in step.updates},
        unscaled={unscaling.node for unscaling in unscalings},
        updated={update.node for update in below},
    )
    for update in below:
        if pending.at_updates.get(update.node) != PENDING:
            why = "no optimizer steps in every pass"
            raise NotScalableError(step.module, update.optimizer, why)
    if True in pending.at_end:
        raise NotScalableError(step.module, step.updates[-1].node, _UNCLEAR)
    for left, found in pending.at_exits.items():
        if found == PENDING:
            optimizer = _nearest(step, unscalings, left)
            yield ScalerUpdate(step.module, left, optimizer, above=True)
        elif True in found:
            raise NotScalableError(step.module, left, _UNCLEAR)


def _below_last(step: StepCode) -> Iterator[ScalerUpdate]:
    groups: dict[int, list[Update]] = {}
    for update in sorted(step.updates, key=lambda update: position(update.statement)):
        _has_gradients(step, update)
        *blocks, whole = _passes_of(step, update.statement)
        # A block that leaves the pass early is one of its own where nothing has stepped above it.
        part_of = whole if whole in groups or not blocks else blocks[0]
        groups.setdefault(part_of, []).append(update)
    for group in groups.values():
        for one, other in combinations(group, 2):
            same = ast.dump(one.optimizer) == ast.dump(other.optimizer)
            if same and not exclude_each_other(step.module, one.statement, other.statement):
                why = "an optimizer steps more than once in one pass"
                raise NotScalableError(step.module, other.node, why)
        block, held = common_block(step.module, [_outside_loops(step, u) for u in group])
        if not any(_always_steps(statement, group) for statement in held):
            why = "no optimizer steps in every pass"
            raise NotScalableError(step.module, group[0].node, why)
        last = max(held, key=block.index)
        yield ScalerUpdate(step.module, last, group[-1].optimizer)


def _nearest(step: StepCode, unscalings: Sequence[Unscaling], left: ast.stmt) -> ast.expr:
    """The optimizer that was stepped or unscaled last above ``left``."""
    used = [(position(update.statement), update.optimizer) for update in step.updates]
    used += [(position(unscaling.node), unscaling.optimizer) for unscaling in unscalings]
    return max((u for u in used if u[0] < position(left)), key=lambda u: u[0])[1]


def _has_gradients(step: StepCode, update: Update) -> None:
    """A scaler refuses to step an optimizer that no backward pass has given gradients."""
    around = [update.statement, *step.module.ancestors(update.statement)]
    blocks = {id(step.module.block(s)) for s in around if isinstance(s, ast.stmt)}
    for backward in step.backwards:
        holder: ast.stmt = backward.statement
        while id(step.module.block(holder)) not in blocks:
            around_it = step.module.parents[holder]
            if not isinstance(around_it, ast.For | ast.AsyncFor | ast.With | ast.Try):
                break
            holder = around_it
        else:
            return
    why = "the optimizer may step without a backward pass before it"
    raise NotScalableError(step.module, update.node, why)


def _nothing_pending(resolver: Resolver, step: StepCode, updated: Iterable[ScalerUpdate]) -> None:
    """The scale must not change between a backward pass and the step that applies its gradients."""
    events = [(*position(backward.statement), 0) for backward in step.backwards]
    events += [(*position(update.statement), 1) for update in step.updates]
    changes = [u.node for u in updated if not _leaves_pass(step.module, u.node)]
    events += [
        (node.end_lineno or node.lineno, node.end_col_offset or 0, 2)
        for node in (*changes, *_steps_elsewhere(resolver, step))
    ]
    kinds = [kind for *_, kind in sorted(events)]
    if (2, 1) in pairwise(kinds):
        why = "an optimizer steps on gradients of a backward pass before another update"
        raise NotScalableError(step.module, step.updates[-1].node, why)


def _steps_elsewhere(resolver: Resolver, step: StepCode) -> Iterator[ast.stmt]:
    """The statements of ``step`` that call a function in which an optimizer steps, and its scaler is updated."""
    own = {update.node for update in step.updates}
    others = {call.node for call in step.loop.optimizer_steps} - own
    if not others or not own:
        return
    for statement in Flow(step.module, tuple(step.body)).statements:
        reached = reached_nodes(resolver, own_nodes(statement), step.module)
        if any(r.node in others for r in reached):
            yield statement


def _outside_loops(step: StepCode, update: Update) -> ast.stmt:
    """The statement of ``update``, or the outermost loop around it in which nothing is backpropagated."""
    backwards = {backward.node for backward in step.backwards}
    outermost = update.statement
    for loop in step.module.loops(update.statement):
        if not backwards.isdisjoint(walk(loop)):
            break
        outermost = loop
    return outermost


def _passes_of(step: StepCode, statement: ast.stmt) -> Iterator[int]:
    """What one update of the scaler may cover: blocks around ``statement`` that leave a pass early, and last the whole pass.

    That is the innermost loop that backpropagates, or the function.
    """
    module = step.module
    backwards = {backward.node for backward in step.backwards}
    child: ast.AST = statement
    for ancestor in module.ancestors(statement):
        is_loop = isinstance(ancestor, ast.For | ast.AsyncFor | ast.While)
        is_function = isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function or (is_loop and not backwards.isdisjoint(walk(ancestor))):
            yield id(ancestor)
            return
        if isinstance(child, ast.stmt) and _leaves_pass(module, child):
            yield id(module.block(child))
        child = ancestor
    yield id(module.tree)


def _leaves_pass(module: Module, statement: ast.stmt) -> bool:
    """Whether the block of ``statement`` ends by leaving the pass."""
    return isinstance(module.block(statement)[-1], ast.Continue | ast.Break | ast.Return)


def _always_steps(statement: ast.stmt, updates: Sequence[Update]) -> bool:
    """Whether ``statement`` steps an optimizer whenever it runs."""
    if any(update.statement is statement for update in updates):
        return True
    if isinstance(statement, ast.With | ast.For):
        return any(_always_steps(inner, updates) for inner in statement.body)
    if isinstance(statement, ast.If):
        return all(
            any(_always_steps(inner, updates) for inner in block)
            for block in (statement.body, statement.orelse)
        )
    return False
