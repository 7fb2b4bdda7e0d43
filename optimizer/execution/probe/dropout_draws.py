"""Dropout that drops the same elements whatever computes it.

Torch draws a mask in the order in which the elements lie in memory, so that it changes with the memory format; on a GPU also
with the type, since a thread draws for as many elements as it reads at a time: four of float32, eight of bfloat16. The fused
attention kernels and cuDNN's recurrent layers draw in ways of their own. A rewrite that only computes in another type or
layout would train with other masks, which is no change of training.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false, reportDeprecated=false

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.library import Library
from torch.overrides import has_torch_function_unary

from .devices import may_be_used
from .functions import Functions
from .patches import Patches

try:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    _plain_attention = functools.partial(sdpa_kernel, SDPBackend.MATH)
except ImportError:  # before torch 2.3
    _plain_attention = functools.partial(
        torch.backends.cuda.sdp_kernel, enable_flash=False, enable_mem_efficient=False
    )

_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def draw_dropout_alike(patches: Patches) -> None:
    """Have every mask drawn by ``aten::native_dropout``, and there in the order of the elements' indices.

    That is where torch's dropout on a GPU and compiled dropout come to; on the CPU it is led there. What draws in a kernel of its own
    is made to compute by torch's own operations.
    """
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a kernel already is known
        for key in ("CPU", "CUDA"):
            library.impl("native_dropout", _native_dropout, key)
    patches.on_undo(library._destroy)
    functions = Functions(patches)
    functions.wrap("dropout", _dropout)
    if may_be_used():
        functions.wrap("scaled_dot_product_attention", _attention)
        for layer in _RECURRENT:
            patches.wrap(layer, "forward", _recurrent)


def _native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    drawn = torch.empty_like(input, dtype=torch.float32, memory_format=torch.contiguous_format)
    # Not by the method: that one draws on the host.
    torch.ops.aten.bernoulli_.float(drawn, 1.0 - p)
    kept = torch.empty_like(input, dtype=torch.bool).copy_(drawn)
    return (input * kept).mul_(1.0 / (1.0 - p) if p < 1.0 else 0.0), kept


def _dropout(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(input, p=0.5, training=True, inplace=False):
        if not training or not 0.0 < p < 1.0 or not _is_plain(input):
            return original(input, p, training, inplace)
        dropped = torch.native_dropout(input, p, True)[0]
        return input.copy_(dropped) if inplace else dropped

    return wrapper


def _is_plain(input: Any) -> bool:
    return (
        isinstance(input, Tensor)
        and not has_torch_function_unary(input)
        and input.layout == torch.strided
        and not input.is_nested
        and input.is_floating_point()
    )


def _attention(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs):
        if not dropout_p or not query.is_cuda:
            return original(query, key, value, attn_mask, dropout_p, *args, **kwargs)
        with _plain_attention():
            return original(query, key, value, attn_mask, dropout_p, *args, **kwargs)

    return wrapper


def _recurrent(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(layer, *args, **kwargs):
        if not (layer.training and layer.dropout and layer.num_layers > 1):
            return original(layer, *args, **kwargs)
        enabled = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = False
        try:
            return original(layer, *args, **kwargs)
        finally:
            torch.backends.cudnn.enabled = enabled

    return wrapper
