"""Which networks a training step trains, and where the step runs each, as a call of ``DistributedDataParallel`` has to."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ..autograd.grad_modes import suspended_around
from ..calls.reach import reached_nodes
from ..facts import CallFact, Fact, Loop, Optimizer
from ..networks.forward_code import layer_classes
from ..networks.layer_choices import layer_choice
from ..networks.layer_uses import layer_left_out
from ..networks.trained import trained_in_each, trained_wholes
from ..networks.unused_outputs import output_left_out
from ..script import TrainingScript
from ..values.resolver import Resolver


@dataclass(frozen=True)
class TrainedNetwork:
    """A network that optimizers train: ``made`` by one of these calls, and run with gradients in ``forwards``.

    ``in_parts``: the optimizers are given parts of it.
    """

    made: frozenset[ast.Call]
    forwards: tuple[CallFact, ...]
    in_parts: bool


def trained_networks(
    script: TrainingScript, optimizers: Sequence[Optimizer], loop: Loop
) -> tuple[TrainedNetwork, ...]:
    """The networks that ``optimizers`` train, each the whole of it or parts; none where they, or where they run, are not seen.

    Where they are given one part alone, it is that part if the step calls it by itself, else the whole that it is a part of.
    """
    alone: tuple[TrainedNetwork, ...] = ()
    for networks_of in (trained_in_each, trained_wholes):
        each = [networks_of(script.resolver, optimizer) for optimizer in optimizers]
        made = dict.fromkeys(network for trained in each for network in trained)
        if not all(each) or not all(made) or not _are_disjoint(made):
            continue
        in_parts = networks_of is trained_wholes
        found = tuple(
            TrainedNetwork(calls, tuple(_forwards(script, calls, loop)), in_parts) for calls in made
        )
        if all(network.forwards for network in found) and _are_disjoint(
            [call.node for call in network.forwards] for network in found
        ):
            return found
        if len(found) == 1:
            alone = found
    return alone


def shared_network(
    resolver: Resolver, one: Optimizer, other: Optimizer
) -> frozenset[ast.Call] | None:
    """A network of which both optimizers train parts or all: the calls that may have made it."""
    networks = set(trained_wholes(resolver, one))
    return next((n for n in trained_wholes(resolver, other) if n in networks), None)


def _are_disjoint(groups: Iterable[Collection[ast.Call]]) -> bool:
    every = [call for group in groups for call in group]
    return len(every) == len({*every})


def _forwards(script: TrainingScript, made: frozenset[ast.Call], loop: Loop) -> list[CallFact]:
    return [
        call
        for call in loop.forwards
        if made & {model.node for model in script.models_of(call.node.func, call.module)}
        and not suspended_around(script.resolver, call.node, call.module)
    ]


def part_left_out(script: TrainingScript, trained: TrainedNetwork) -> Fact | None:
    """A part of the network that a backward pass may leave without gradients, by one of its forward passes."""
    resolver, (first, *_) = script.resolver, trained.forwards
    classes = layer_classes(resolver, script.models_of(first.node.func, first.module))
    found = layer_left_out(resolver, classes)
    for forward in trained.forwards:
        found = (
            found
            or layer_choice(resolver, forward, classes)
            or output_left_out(resolver, forward)
            or _graph_free_part(resolver, forward, in_parts=trained.in_parts)
        )
    return found


def _graph_free_part(resolver: Resolver, forward: CallFact, *, in_parts: bool) -> CallFact | None:
    """Where the network that ``forward`` runs computes without gradients: parameters there get none, trained or not.

    So it may be where it lets go of a result, if it is trained ``in_parts``.
    """
    for reached in reached_nodes(resolver, [forward.node], forward.module, into_forward=True):
        node, module = reached.node, reached.module
        if not isinstance(node, ast.Call):
            continue
        lets_go = in_parts and isinstance(node.func, ast.Attribute) and node.func.attr == "detach"
        if lets_go or suspended_around(resolver, node, module):
            return CallFact(module, node, module.code(node.func))
    return None
