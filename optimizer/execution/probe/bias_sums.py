"""How large the sums are that the gradients of biases are made of.

A bias's gradient is the sum of what reaches its layer's output. Before a normalization the terms cancel, and all that is left is
their rounding: how much that may be is known by the terms alone.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor

from .parameters import Parameters
from .recording import recording

_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


class BiasSums:
    """Adds up, for each bias, the sizes of what reaches its layer's outputs, of the layers it is told of."""

    def __init__(self) -> None:
        self.scaled = False
        """Whether losses are scaled: what reaches a layer is not the gradient that is recorded then."""
        self._sums: dict[int, tuple[Tensor, Tensor, int]] = {}

    def called(self, layer: nn.Module, output: Any) -> None:
        """A layer has given ``output``, of which gradients may be taken."""
        bias = getattr(layer, "bias", None)
        if (
            isinstance(layer, (nn.Linear, *_CONVOLUTIONS))
            and isinstance(bias, Tensor)
            and isinstance(output, Tensor)
            and output.requires_grad
            and type(output) is Tensor
        ):
            axis = output.dim() - 1 if isinstance(layer, nn.Linear) else 1
            output.register_hook(partial(self._add, bias, axis))

    def _add(self, bias: Tensor, axis: int, gradient: Tensor) -> None:
        """``gradient`` has reached an output whose ``axis`` the elements of ``bias`` lie along."""
        if gradient.dim() <= axis or gradient.shape[axis] != bias.numel():
            return
        if is_legacy_batchedtensor(gradient) or is_functorch_wrapped_tensor(gradient):
            return  # of many losses at once (is_grads_batched): nothing that outlives this call
        with recording(), torch.no_grad():
            others = [d for d in range(gradient.dim()) if d != axis]
            sizes = gradient.abs().float()
            sizes = sizes.sum(others) if others else sizes
            _, before, terms = self._sums.get(id(bias), (bias, torch.zeros_like(sizes), 0))
            count = gradient.numel() // bias.numel()
            self._sums[id(bias)] = bias, before + sizes, terms + count

    def finish(self, parameters: Parameters) -> dict[str, Any]:
        """What the record says: for each bias the L2 norm, over its elements, of the sums of sizes, and the terms of each."""
        if self.scaled:
            return {}
        names = {id(parameter): name for name, parameter in parameters.named.items()}
        return {
            "bias_sums": {
                names[key]: [float(sizes.norm()), terms]
                for key, (_, sizes, terms) in self._sums.items()
                if key in names
            }
        }
