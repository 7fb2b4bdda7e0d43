"""Whether the gradients of training steps can be scaled, as float16 needs, and where the parts of that go.

The order is that of https://docs.pytorch.org/docs/stable/notes/amp_examples.html: scale every loss, unscale before
gradients are looked at, step each optimizer through the scaler, update the scaler once all of them have stepped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from ..calls.signatures import takes_closure
from ..editing.companions import (
    Companion,
    SharedFunctionError,
    find_companion,
    sees_attribute,
)
from ..facts import Loop
from ..optimizers.fused_updates import fused_momentum, wraps_optimizer
from ..optimizers.gradient_clearing import may_be_cleared
from ..training.steps import StepCode
from ..values.resolver import Resolver
from ..values.values import Made
from .not_scalable import NotScalable, NotScalableError
from .scaler_lifetimes import made_once
from .scaler_updates import ScalerUpdate, scaler_updates
from .unscalings import Unscaling, unscalings_of


@dataclass(frozen=True, eq=False)
class LossScaling:
    """Where a scaler is made and handed, where it unscales and where it is updated."""

    companion: Companion
    unscalings: tuple[Unscaling, ...]
    updates: tuple[ScalerUpdate, ...]


def loss_scaling(
    resolver: Resolver, steps: Sequence[StepCode], loops: Iterable[Loop]
) -> LossScaling | NotScalable:
    """How one scaler serves all of ``steps``; ``loops`` are those of the project."""
    try:
        _all_in_sight(steps)
        _all_scaled(resolver, steps)
        _all_known(resolver, steps)
        unscalings = {step: [*unscalings_of(step)] for step in steps}
        updates = [
            found for step in steps for found in scaler_updates(resolver, step, unscalings[step])
        ]
        companion = _companion(resolver, steps)
        made_once(resolver, companion, steps, loops)
        _all_cleared(resolver, steps)
        scaling = LossScaling(companion, tuple(chain(*unscalings.values())), tuple(updates))
    except NotScalableError as error:
        return error.fact
    # Last: `fused-optimizer` fuses what cannot be scaled, which is then not why it is not scaled.
    momentum = fused_momentum(resolver)
    return NotScalable(momentum.module, momentum.node, momentum.message) if momentum else scaling


def _all_in_sight(steps: Iterable[StepCode]) -> None:
    seen = {update.node for step in steps for update in step.updates}
    for step in steps:
        if not step.loop.optimizer_steps:
            why = "no optimizer step is seen that applies the gradients"
            raise NotScalableError(step.module, step.node, why)
        for call in step.loop.optimizer_steps:
            if takes_closure(call.node):
                why = "the optimizer calls a closure, which a GradScaler cannot do"
                raise NotScalableError(call.module, call.node, why)
            if call.node not in seen:
                why = "the optimizer steps inside a function of its own"
                raise NotScalableError(call.module, call.node, why)


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
                raise NotScalableError(call.module, call.node, why)


def _all_known(resolver: Resolver, steps: Sequence[StepCode]) -> None:
    """That no library wraps an optimizer: the scaler unscales by ``param_groups``, which a wrapper need not have."""
    for update in (update for step in steps for update in step.updates):
        for value in resolver.values(update.optimizer, update.module):
            if isinstance(value, Made) and wraps_optimizer(resolver, value):
                wrapper = value.module.code(value.call.func)
                why = f"what `{wrapper}` does with the optimizer is not known"
                raise NotScalableError(value.module, value.call, why)


def _all_cleared(resolver: Resolver, steps: Sequence[StepCode]) -> None:
    """That gradients are cleared between steps: those that are left are unscaled already, and would be once more."""
    for step in steps:
        for update in step.updates:
            if not may_be_cleared(resolver, update.optimizer, update.module, step.node):
                why = "nothing clears its gradients between steps: scaled ones would be added to those of the steps before"
                raise NotScalableError(update.module, update.node, why)


def _companion(resolver: Resolver, steps: Sequence[StepCode]) -> Companion:
    uses = [(update.optimizer, update.module) for step in steps for update in step.updates]
    why = "a GradScaler cannot be handed from where the optimizer is made to where it steps"
    try:
        companion = find_companion(resolver, uses)
    except SharedFunctionError as error:
        raise NotScalableError(steps[0].module, steps[0].node, f"{why}: {error}") from error
    if companion is None:
        raise NotScalableError(steps[0].module, steps[0].node, why)
    for step in steps:
        if not step.updates and not _sees(resolver, companion, step):
            why = "the loss is backpropagated in a function that does not know the optimizer"
            raise NotScalableError(step.module, step.node, why)
    return companion


def _sees(resolver: Resolver, companion: Companion, step: StepCode) -> bool:
    """Whether the code of ``step`` sees what is made in the scope of the companion."""
    if companion.prefix:
        return sees_attribute(resolver, companion, step.node, step.module)
    if companion.module is not step.module:
        return False
    owner = companion.module.function(companion.statement)
    return owner is None or owner is step.function or owner in step.module.ancestors(step.node)
