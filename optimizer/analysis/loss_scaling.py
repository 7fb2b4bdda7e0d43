"""Whether the gradients of training steps can be scaled, as float16 needs, and where the parts of that go.

The order is that of https://docs.pytorch.org/docs/stable/notes/amp_examples.html: scale every loss, unscale before
gradients are looked at, step each optimizer through the scaler, update the scaler once all of them have stepped.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from .companions import Companion, find_companion, sees_attribute
from .facts import Fact
from .fused_updates import fused_momentum, wraps_optimizer
from .resolver import Resolver
from .statements import common_block
from .steps import StepCode, Update
from .syntax import Module
from .trees import walk
from .values import Made


@dataclass(frozen=True, eq=False)
class Unscaling(Fact):
    """Above the statement ``node`` the gradients of ``optimizer`` must be unscaled."""

    node: ast.stmt
    optimizer: ast.expr


@dataclass(frozen=True, eq=False)
class ScalerUpdate(Fact):
    """Below the statement ``node`` the scaler that stepped ``optimizer`` must be updated."""

    node: ast.stmt
    optimizer: ast.expr


@dataclass(frozen=True, eq=False)
class LossScaling:
    """Where a scaler is made and handed, where it unscales and where it is updated."""

    companion: Companion
    unscalings: tuple[Unscaling, ...]
    updated_below: tuple[ScalerUpdate, ...]


@dataclass(frozen=True, eq=False)
class NotScalable(Fact):
    """Why gradients cannot be scaled, seen at ``node``."""

    why: str


class _NotScalableError(Exception):
    def __init__(self, module: Module, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.fact = NotScalable(module, node, why)


def loss_scaling(resolver: Resolver, steps: Sequence[StepCode]) -> LossScaling | NotScalable:
    """How one scaler serves all of ``steps``."""
    try:
        _all_in_sight(steps)
        _all_scaled(resolver, steps)
        _all_known(resolver, steps)
        unscalings = [found for step in steps for found in _unscalings(step)]
        below = [found for step in steps for found in _updated_below(step)]
        scaling = LossScaling(_companion(resolver, steps), tuple(unscalings), tuple(below))
    except _NotScalableError as error:
        return error.fact
    # Last: `fused-optimizer` fuses what cannot be scaled, which is then not why it is not scaled.
    momentum = fused_momentum(resolver)
    return NotScalable(momentum.module, momentum.node, momentum.message) if momentum else scaling


def _all_in_sight(steps: Iterable[StepCode]) -> None:
    seen = {update.node for step in steps for update in step.updates}
    for step in steps:
        if not step.loop.optimizer_steps:
            why = "no optimizer step is seen that applies the gradients"
            raise _NotScalableError(step.module, step.node, why)
        for call in step.loop.optimizer_steps:
            if call.node.args or call.node.keywords:
                why = "the optimizer calls a closure, which a GradScaler cannot do"
                raise _NotScalableError(call.module, call.node, why)
            if call.node not in seen:
                why = "the optimizer steps inside a function of its own"
                raise _NotScalableError(call.module, call.node, why)


def _all_scaled(resolver: Resolver, steps: Sequence[StepCode]) -> None:
    """That no backward pass of the loops stays as it is: its gradients may be added to scaled ones."""
    scaled = {backward.node for step in steps for backward in step.backwards}
    for step in steps:
        for call in step.loop.backwards:
            # A first-party method of that name calls the one that counts.
            if call.node not in scaled and not resolver.callees(call.node, call.module):
                why = (
                    "gradients of a backward pass that stays in float32 may be added to scaled ones"
                )
                raise _NotScalableError(call.module, call.node, why)


def _all_known(resolver: Resolver, steps: Sequence[StepCode]) -> None:
    """That no library wraps an optimizer: the scaler unscales by ``param_groups``, which a wrapper need not have."""
    for update in (update for step in steps for update in step.updates):
        for value in resolver.values(update.optimizer, update.module):
            if isinstance(value, Made) and wraps_optimizer(resolver, value):
                wrapper = value.module.code(value.call.func)
                why = f"what `{wrapper}` does with the optimizer is not known"
                raise _NotScalableError(value.module, value.call, why)


def _unscalings(step: StepCode) -> Iterable[Unscaling]:
    """Where gradients are looked at between the last backward and an update."""
    found: dict[tuple[str, ast.stmt], Unscaling] = {}
    for reader in step.gradient_readers:
        for update in _applying(step, reader):
            block = step.module.block(update.statement)
            holders = [reader, *(a for a in step.module.ancestors(reader) if a in block)]
            holder = next((h for h in holders if isinstance(h, ast.stmt) and h in block), None)
            if holder is None:
                why = "gradients are looked at in steps that do not apply them"
                raise _NotScalableError(step.module, reader, why)
            optimizer = step.module.code(update.optimizer)
            earlier = [u for (name, _), u in found.items() if name == optimizer]
            if not any(step.module.block(u.node) is block for u in earlier):
                found[optimizer, holder] = Unscaling(step.module, holder, update.optimizer)
    return found.values()


def _applying(step: StepCode, reader: ast.stmt) -> list[Update]:
    """The updates that come next after ``reader``, all up to the next backward."""
    here = _position(reader)
    later = [update for update in step.updates if _position(update.statement) > here]
    if not later:
        return []  # after the step, gradients are unscaled
    backwards = [at for b in step.backwards if (at := _position(b.statement)) > here]
    if backwards and min(backwards) <= min(_position(update.statement) for update in later):
        why = "gradients are looked at before the last backward pass of the step"
        raise _NotScalableError(step.module, reader, why)
    end = min(backwards, default=(sys.maxsize, 0))
    return [update for update in later if _position(update.statement) < end]


def _position(node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Where ``node`` begins: several statements may share a line."""
    return node.lineno, node.col_offset


def _updated_below(step: StepCode) -> Iterable[ScalerUpdate]:
    """The statements below which the scaler is updated: the last update of each pass of a loop."""
    groups: dict[int, list[Update]] = {}
    for update in step.updates:
        _has_gradients(step, update)
        groups.setdefault(_pass_of(step, update.statement), []).append(update)
    found: list[ScalerUpdate] = []
    for group in groups.values():
        for one, other in combinations(group, 2):
            same = ast.dump(one.optimizer) == ast.dump(other.optimizer)
            if same and not _exclude_each_other(step.module, one.statement, other.statement):
                why = "an optimizer steps more than once in one pass"
                raise _NotScalableError(step.module, other.node, why)
        block, held = common_block(step.module, [_outside_loops(step, u) for u in group])
        if not any(_always_steps(statement, group) for statement in held):
            why = "no optimizer steps in every pass"
            raise _NotScalableError(step.module, group[0].node, why)
        last = max(held, key=block.index)
        found.append(ScalerUpdate(step.module, last, group[-1].optimizer))
    _nothing_pending(step, found)
    return found


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
    raise _NotScalableError(step.module, update.node, why)


def _nothing_pending(step: StepCode, updated: Iterable[ScalerUpdate]) -> None:
    """The scale must not change between a backward pass and the step that applies its gradients."""
    events = [(*_position(backward.statement), 0) for backward in step.backwards]
    events += [(*_position(update.statement), 1) for update in step.updates]
    events += [
        (update.node.end_lineno or update.node.lineno, update.node.end_col_offset or 0, 2)
        for update in updated
    ]
    kinds = [kind for *_, kind in sorted(events)]
    if (2, 1) in pairwise(kinds):
        why = "an optimizer steps on gradients of a backward pass before another update"
        raise _NotScalableError(step.module, step.updates[-1].node, why)


def _exclude_each_other(module: Module, one: ast.stmt, other: ast.stmt) -> bool:
    """Whether the two are in different branches of an ``if``."""
    child: ast.AST = one
    for ancestor in module.ancestors(one):
        if isinstance(ancestor, ast.If) and other in set(walk(ancestor)):
            mine = ancestor.body if child in ancestor.body else ancestor.orelse
            return not any(other in set(walk(statement)) for statement in mine)
        child = ancestor
    return False


def _outside_loops(step: StepCode, update: Update) -> ast.stmt:
    """The statement of ``update``, or the outermost loop around it in which nothing is backpropagated."""
    backwards = {backward.node for backward in step.backwards}
    outermost = update.statement
    for loop in step.module.loops(update.statement):
        if not backwards.isdisjoint(walk(loop)):
            break
        outermost = loop
    return outermost


def _pass_of(step: StepCode, statement: ast.stmt) -> int:
    """What one update of the scaler covers: the innermost loop that backpropagates, or a block that leaves it early."""
    module = step.module
    backwards = {backward.node for backward in step.backwards}
    for ancestor in [statement, *module.ancestors(statement)]:
        if not isinstance(ancestor, ast.stmt):
            continue
        block = module.block(ancestor)
        if isinstance(block[-1], ast.Continue | ast.Break | ast.Return):
            return id(block)
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef):
            return id(ancestor)
        is_loop = isinstance(ancestor, ast.For | ast.AsyncFor | ast.While)
        if is_loop and not backwards.isdisjoint(walk(ancestor)):
            return id(ancestor)
    return id(module.tree)


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


def _companion(resolver: Resolver, steps: Sequence[StepCode]) -> Companion:
    uses = [(update.optimizer, update.module) for step in steps for update in step.updates]
    companion = find_companion(resolver, uses)
    if companion is None:
        why = "a GradScaler cannot be handed from where the optimizer is made to where it steps"
        raise _NotScalableError(steps[0].module, steps[0].node, why)
    for step in steps:
        if not step.updates and not _sees(resolver, companion, step):
            why = "the loss is backpropagated in a function that does not know the optimizer"
            raise _NotScalableError(step.module, step.node, why)
    return companion


def _sees(resolver: Resolver, companion: Companion, step: StepCode) -> bool:
    """Whether the code of ``step`` sees what is made in the scope of the companion."""
    if companion.prefix:
        return sees_attribute(resolver, companion, step.node, step.module)
    if companion.module is not step.module:
        return False
    owner = companion.module.function(companion.statement)
    return owner is None or owner is step.function or owner in step.module.ancestors(step.node)
