"""Whether float32 products were rounded to TF32, by torch's settings: matrix products, convolutions, recurrent layers."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

_FIRST_CAPABILITY = (8, 0)
_CONVOLVED_DIMENSIONS = 3
"""Weights of so many dimensions are those of convolutions, mostly, whether a layer holds them or not."""


def products_in_tf32() -> bool:
    """Whether matrix products may be; torch refuses to answer by the old setting once a script has used the new one."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)  # since torch 2.9
    if precision is not None:
        return precision == "tf32"
    return torch.get_float32_matmul_precision() != "highest"


def layers_in_tf32(modules: Iterable[nn.Module], weights: Iterable[Tensor]) -> bool:
    """Whether convolutions or recurrent layers among these may be: cuDNN has it on unless it is told otherwise."""
    if not torch.cuda.is_initialized():
        return False
    if torch.cuda.get_device_capability() < _FIRST_CAPABILITY:
        return False
    found = list(modules)
    convolutions = any(isinstance(module, _ConvNd) for module in found) or any(
        weight.is_cuda and weight.dim() >= _CONVOLVED_DIMENSIONS for weight in weights
    )
    recurrent = any(isinstance(module, nn.RNNBase) for module in found)
    return (convolutions and _cudnn_rounds("conv")) or (recurrent and _cudnn_rounds("rnn"))


def _cudnn_rounds(part: str) -> bool:
    own = getattr(torch.backends.cudnn, part, None)  # since torch 2.9
    if own is not None:
        return own.fp32_precision == "tf32"
    return torch.backends.cudnn.allow_tf32
