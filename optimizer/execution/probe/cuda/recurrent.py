"""What cuDNN refuses of a recurrent layer: a backward pass through one that was called in eval mode.

It keeps what the gradients need in training mode alone, and raises in the backward pass (ATen/native/cudnn/RNN.cpp,
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
    """Have recurrent layers on a device refuse the backward passes that cuDNN refuses."""
    for name in _LAYERS:
        patches.wrap(torch._VF, name, _without_gradients_in_eval_mode)


def _without_gradients_in_eval_mode(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def layer(data, *args, **kwargs):
        results = original(data, *args, **kwargs)
        if _trains(args, kwargs) or not _is_cudnn(data):
            return results
        for result in _tensors(results):
            if result.requires_grad:
                result.register_hook(_refuse)
        return results

    return layer


def _trains(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The argument ``train``: the fourth behind the list of weights, whether the input is packed or not."""
    given = [index for index, value in enumerate(args) if isinstance(value, list)]
    position = given[-1] + 4 if given else len(args)
    return bool(kwargs.get("train", args[position] if position < len(args) else True))


def _is_cudnn(data: torch.Tensor) -> bool:
    on_device = device_of(data).type == "cuda"
    return on_device and torch.backends.cudnn.enabled and data.dtype is not torch.bfloat16


def _tensors(results: Any) -> Iterator[torch.Tensor]:
    for result in results if isinstance(results, tuple | list) else (results,):
        if isinstance(result, torch.Tensor):
            yield result


def _refuse(gradient: torch.Tensor) -> None:
    raise RuntimeError(_REFUSAL)
