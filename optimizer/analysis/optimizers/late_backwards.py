"""Backward passes through weights that an optimizer has changed since the forward pass."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..autograd.gradient_graphs import may_keep_graph
from ..facts import Optimizer
from ..obstacles import Obstacle
from ..program.reaching import bindings_of
from ..program.trees import position
from ..training.steps import Backward, StepCode, Update
from ..values.resolver import Resolver
from ..values.values import Made


def late_backwards(resolver: Resolver, step: StepCode) -> Iterator[tuple[Update, Backward]]:
    """The steps of optimizers, each with a backward pass that may need weights as they were before.

    As in ``d_loss.backward(retain_graph=True); d_optimizer.step(); g_loss.backward()``. PyTorch raises there, as it sees that
    the weights have changed since: unless a fused kernel changed them, or autocast has casts of them from before.
    """
    for update in step.updates:
        for later in step.backwards:
            if _is_late(resolver, later, update, step.backwards):
                yield update, later


def late_backward(
    resolver: Resolver, optimizer: Optimizer, steps: Iterable[StepCode]
) -> Obstacle | None:
    """A backward pass that may need weights as they were before ``optimizer`` changed them."""
    for step in steps:
        for update, later in late_backwards(resolver, step):
            if _steps(resolver, update, optimizer):
                why = "a later backward pass may need weights that its step changes: PyTorch raises there, but sees nothing of what a fused kernel changes"
                return Obstacle(later.module, later.node, why)
    return None


def _steps(resolver: Resolver, update: Update, optimizer: Optimizer) -> bool:
    return any(
        isinstance(value, Made) and value.call is optimizer.node
        for value in resolver.values(update.optimizer, update.module)
    )


def _is_late(
    resolver: Resolver, later: Backward, update: Update, passes: Iterable[Backward]
) -> bool:
    """Whether ``later`` runs below ``update``, for a loss from above it, where a pass above has kept its graph."""
    module = update.module
    if later.module is not module or not isinstance(later.loss, ast.Name):
        return False
    block, stepped = module.block(update.statement), position(update.statement)
    if later.statement not in block or position(later.statement) <= stepped:
        return False
    bindings = bindings_of(module, later.loss)
    if not bindings or any(
        position(module.statement(binding.node)) > stepped for binding in bindings
    ):
        return False
    return any(
        kept.statement in block
        and position(kept.statement) < stepped
        and may_keep_graph(resolver, kept.node, kept.module)
        for kept in passes
    )
