"""What Lightning's mixed precision leaves in bfloat16 where something else takes it.

Lightning runs every step of a module under autocast, and hands on what it returns as it is: `predict` returns a list of it
(https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/pytorch/plugins/precision/amp.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import reached_nodes
from ..precision.half_values import HalfUse, half_uses
from ..program.syntax import FunctionNode
from ..program.trees import walk
from ..training.loops import forward_calls
from ..values.resolver import Resolver
from .lightning import ON_DEVICE, LightningUse, methods

_GET_OUTPUTS = frozenset(
    f"on_{stage}_batch_end" for stage in ("train", "validation", "test", "predict")
)
"""Hooks, of modules and of callbacks, that are given what a step has returned."""


def lightning_half_uses(resolver: Resolver, use: LightningUse) -> tuple[HalfUse, ...]:
    """Where what the steps of the script's modules compute leaves PyTorch, or meets float32 behind them."""
    nodes = [
        reached
        for cls in use.modules
        for method in methods(cls)
        if method.name in ON_DEVICE
        for reached in reached_nodes(resolver, method.body, cls.module, into_forward=True)
    ]
    forwards = {call.node for call in forward_calls(resolver, nodes)}
    found = half_uses(
        resolver,
        frozenset([*forwards, *(c.node for c in use.calls if c.method == "predict")]),
        frozenset(reached.node for reached in nodes),
    )
    return (*found, *_in_hooks(resolver))


def _in_hooks(resolver: Resolver) -> Iterator[HalfUse]:
    """Where a hook that looks at what a step returned hands something to NumPy."""
    for module in resolver.project.modules:
        for hook in module.nodes_of(ast.FunctionDef):
            if hook.name not in _GET_OUTPUTS or not _reads_outputs(hook):
                continue
            for node in walk(hook):
                match node:
                    case ast.Call(func=ast.Attribute(value=value, attr="numpy")):
                        yield HalfUse(module, node, value, False, "NumPy")
                    case _:
                        pass


def _reads_outputs(hook: FunctionNode) -> bool:
    names = {argument.arg for argument in hook.args.args if "output" in argument.arg}
    return any(isinstance(node, ast.Name) and node.id in names for node in walk(hook))
