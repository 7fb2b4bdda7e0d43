"""How long a GradScaler lives: one that is made anew for every batch or epoch of a training searches its scale each time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..calls.reach import reached_nodes
from ..editing.companions import Companion
from ..facts import Loop, LoopKind
from ..loading.iterations import loops_around
from ..networks.forward_code import networks_run
from ..training.steps import StepCode
from ..values.resolver import Resolver
from .not_scalable import NotScalableError

_ANEW = (
    "the optimizer is made anew in a loop, and a GradScaler made there would search its scale from the start each time, "
    "leaving out steps"
)


def made_once(
    resolver: Resolver, companion: Companion, steps: Sequence[StepCode], loops: Iterable[Loop]
) -> None:
    """That a scaler which is made as ``companion`` is made once in a training: what goes over folds makes new networks, too."""
    by_node = {loop.node: loop for loop in loops}
    networks = {
        model.node for step in steps for model in networks_run(resolver, step.nodes(resolver))
    }
    for around in loops_around(resolver, companion.statement, companion.module):
        loop, module = by_node.get(around.node), around.module
        is_of_batches = loop is not None and (
            loop.loaders or loop.kind in {LoopKind.TRAINING, LoopKind.EVALUATION}
        )
        inside = {reached.node for reached in reached_nodes(resolver, around.node.body, module)}
        if is_of_batches or not networks <= inside:
            raise NotScalableError(module, around.node, _ANEW)
