"""Recurrent layers, which cuDNN computes in float16 wherever autocast is on, whatever type that was given.

So says the kernel of ``_cudnn_rnn`` for autocast, https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cudnn/AutocastRNN.cpp;
what comes in as bfloat16 (from a convolution, say) goes without cuDNN, by a kernel per time step and gate.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..calls.reach import Reached
from ..facts import Model
from ..networks.forward_code import layer_classes
from ..networks.network_layers import network_code
from ..obstacles import Bfloat16Obstacle, Obstacle
from ..values.resolver import Resolver

_RECURRENT = frozenset({"torch.nn.RNN", "torch.nn.LSTM", "torch.nn.GRU"})
_FEWEST_ARGUMENTS = 2
"""Sizes of the input and the state: a layer that is chosen by name and takes fewer (an activation) is none."""


def recurrent_layers(resolver: Resolver, networks: Iterable[Model]) -> Iterator[Obstacle]:
    """What in ``networks`` is, or may be, such a layer: bfloat16 would be float16 there, and nothing would scale its gradients."""
    networks = tuple(networks)
    for reached in network_code(resolver, networks):
        name = _made(resolver, reached)
        if name is not None:
            yield _obstacle(reached, name)
    for cls in layer_classes(resolver, networks):
        for base in cls.node.bases:
            if resolver.names(base, cls.module) & _RECURRENT:
                yield _obstacle(Reached(base, cls.module, False), cls.node.name)


def _made(resolver: Resolver, reached: Reached) -> str | None:
    """The code of the layer that ``reached`` makes, if it may be a recurrent one."""
    node, module = reached.node, reached.module
    if not isinstance(node, ast.Call):
        return None
    if resolver.names(node.func, module) & _RECURRENT or (
        len(node.args) >= _FEWEST_ARGUMENTS and _chosen_by_name(resolver, node.func, reached)
    ):
        return module.code(node.func)
    return None


def _chosen_by_name(resolver: Resolver, layer: ast.expr, reached: Reached) -> bool:
    """Whether ``layer`` is ``getattr(nn, name)``, for a name that is not known."""
    match layer:
        case ast.Call(func=ast.Name(id="getattr"), args=[package, _, *_]):
            known = resolver.names(layer, reached.module)
            return not known and "torch.nn" in resolver.names(package, reached.module)
        case _:
            return False


def _obstacle(place: Reached, layer: str) -> Obstacle:
    why = f"cuDNN computes recurrent layers (`{layer}`) in float16 under autocast, whose gradients need a GradScaler"
    chosen = "cuDNN's recurrent layers know no other type"
    return Bfloat16Obstacle(place.module, place.node, why, in_float16=chosen)
