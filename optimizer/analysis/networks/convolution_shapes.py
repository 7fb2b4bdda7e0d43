"""Whether the convolutions of the training steps see the same few shapes again and again."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..calls.reach import Reached, never_runs
from ..devices.host_data import HostData
from ..facts import DataLoader, Fact
from ..loading.fixed_shapes import varying_shape
from ..program.syntax import Module
from ..script import TrainingScript
from ..training.steps import StepCode
from ..values.resolver import Resolver
from .drawn_sizes import may_be_drawn
from .forward_code import forward_code, networks_run

_RESIZING = frozenset(
    "interpolate upsample resize resize_ crop center_crop random_crop resized_crop Resize RandomCrop "
    "RandomResizedCrop".split()
)
_DRAWS = ("random.", "numpy.random.")
_TORCH_DRAWS = frozenset({"torch.randint", "torch.randperm", "torch.rand", "torch.multinomial"})
_PICKS = frozenset({"masked_select", "nonzero", "roi_align", "roi_pool", "nms", "batched_nms"})
_OWN_SIZES = ("torchvision.models.detection.", "torchvision.ops.")


@dataclass(frozen=True, eq=False)
class VaryingShape(Fact):
    """A place that makes shapes differ, or keeps them from being known; ``message`` says how."""

    message: str


def varying_convolution_shapes(
    script: TrainingScript, steps: Sequence[StepCode]
) -> VaryingShape | str | None:
    """Why the convolutions of ``steps``, and of evaluations beside them, may see ever new shapes."""
    resolver = script.resolver
    loaders: dict[DataLoader, None] = {}
    for step in steps:
        nodes = list(step.nodes(resolver, into_forward=True))
        found_here = step.loop.loaders or _drawn_from(script, nodes)
        if not found_here:
            return "the batches come from no DataLoader, so that their shapes are not known"
        loaders |= dict.fromkeys(found_here)
        networks = networks_run(resolver, nodes)
        found = _own_sizes(resolver, networks) or _in_code(
            resolver, [*nodes, *forward_code(resolver, networks)]
        )
        if found is not None:
            return found
    for loop in script.loops:  # what runs in one that is no evaluation may not have been seen
        if not never_runs(resolver, loop.node, loop.module):
            loaders |= dict.fromkeys(loop.loaders)
    for loader in loaders:
        reason = varying_shape(resolver, loader)
        if reason is not None:
            return VaryingShape(loader.module, loader.node, reason)
    return None


def _drawn_from(script: TrainingScript, nodes: Iterable[Reached]) -> list[DataLoader]:
    """The loaders of the batches that ``nodes`` copy to the GPU: those that a step draws with ``next``."""
    reached = {one.node for one in nodes}
    copies = [copy for copy in script.batch_copies if copy.node in reached]
    return list(dict.fromkeys(loader for copy in copies for loader in copy.loaders))


def _own_sizes(resolver: Resolver, networks: Iterable[Fact]) -> VaryingShape | None:
    for network in networks:
        names = resolver.names(getattr(network.node, "func"), network.module)  # noqa: B009
        if any(name.startswith(_OWN_SIZES) for name in names):
            why = "detection networks take images of their own sizes"
            return VaryingShape(network.module, network.node, why)
    return None


def _in_code(resolver: Resolver, nodes: Sequence[Reached]) -> VaryingShape | None:
    """What in the step or the forward passes gives tensors a size that depends on values."""
    draws = any(_draws(resolver, reached) for reached in nodes)
    for reached in nodes:
        node, module = reached.node, reached.module
        if _picks_by_mask(resolver, node, module):
            return VaryingShape(module, node, "a mask picks a varying number of elements")
        if not isinstance(node, ast.Call):
            continue
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        if name in _PICKS:
            return VaryingShape(module, node, "a varying number of elements is picked")
        if name in _RESIZING and draws and may_be_drawn(resolver, node, module):
            return VaryingShape(module, node, "batches are resized, and sizes may be drawn")
    return None


def _picks_by_mask(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` is ``x[y > 0]`` that is read, of a tensor: what is written there changes no size, and no array of NumPy's is convolved."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Compare)
        and isinstance(node.ctx, ast.Load)
        and not HostData(resolver).is_data(node.value, module)
    )


def _draws(resolver: Resolver, reached: Reached) -> bool:
    if not isinstance(reached.node, ast.Call):
        return False
    names = resolver.names(reached.node.func, reached.module)
    return any(name.startswith(_DRAWS) or name in _TORCH_DRAWS for name in names)
