"""What cuDNN refuses of a recurrent layer: a backward pass through one that was called in eval mode, and states that are not contiguous.

What the gradients need is kept in training mode alone, and the backward pass raises otherwise (ATen/native/cudnn/RNN.cpp,
https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cudnn/RNN.cpp). bfloat16 is computed without cuDNN
(``cudnn_is_acceptable`` in ATen/native/CudnnUtils), as is everything where the script has switched it off.
"""

# pyright: reportPrivateUsage=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..patches import Patches
from .tensors import device_of

_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_REFUSAL = "cudnn RNN backward can only be called in training mode"


def patch_recurrent(patches: Patches) -> None:
    """Have recurrent layers on a device refuse what cuDNN refuses."""
    for name in _LAYERS:
        patches.wrap(torch._VF, name, _strict)


def _strict(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def layer(data, *args, **kwargs):
        if not _is_cudnn(data):
            return original(data, *args, **kwargs)
        _check_states(args)
        results = original(data, *args, **kwargs)
        if _trains(args, kwargs):
            return results
        for result in _tensors(results):
            if result.requires_grad:
                result.register_hook(_refuse)
        return results

    return layer


def _weights(args: tuple[Any, ...]) -> int | None:
    """The position of the list of weights, behind the states; whether the input is packed or not."""
    return max((index for index, value in enumerate(args) if isinstance(value, list)), default=None)


def _trains(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The argument ``train``, the fourth behind the weights."""
    weights = _weights(args)
    position = weights + 4 if weights is not None else len(args)
    return bool(kwargs.get("train", args[position] if position < len(args) else True))


def _check_states(args: tuple[Any, ...]) -> None:
    weights = _weights(args)
    if weights:
        for name, state in zip(("hx", "cx"), _tensors(args[weights - 1]), strict=False):
            if not state.is_contiguous():
                raise RuntimeError(f"rnn: {name} is not contiguous")


def _is_cudnn(data: torch.Tensor) -> bool:
    on_device = device_of(data).type == "cuda"
    return on_device and torch.backends.cudnn.enabled and data.dtype is not torch.bfloat16


def _tensors(results: Any) -> Iterator[torch.Tensor]:
    for result in results if isinstance(results, tuple | list) else (results,):
        if isinstance(result, torch.Tensor):
            yield result


def _refuse(gradient: torch.Tensor) -> None:
    raise RuntimeError(_REFUSAL)
