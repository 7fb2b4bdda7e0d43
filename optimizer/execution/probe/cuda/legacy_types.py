"""The old tensor types, ``torch.cuda.FloatTensor`` and its like: called, given to ``type()`` and to ``isinstance``."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..patches import Patches
from .mixing import LEGACY_DTYPES


class CudaTensorType(type):
    """The class of such a type: its instances are the tensors of ``dtype`` on an emulated device."""

    dtype: torch.dtype
    is_cuda = True
    is_sparse = False
    layout = torch.strided

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not isinstance(args[0], int) and not isinstance(args[0], torch.Size):
            data = args[0]
            if isinstance(data, torch.Tensor):
                return data.to("cuda", cls.dtype)
            return torch.tensor(data, dtype=cls.dtype).cuda()
        size = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
        return torch.empty(*size if size else (0,), dtype=cls.dtype).cuda()

    def __instancecheck__(cls, instance: Any) -> bool:
        is_tensor = isinstance(instance, torch.Tensor)
        return is_tensor and instance.is_cuda and instance.dtype is cls.dtype


def patch_legacy_types(patches: Patches) -> None:
    """Replace ``torch.cuda.*Tensor``, and what makes one of them the default."""
    for name, dtype in LEGACY_DTYPES.items():
        made = CudaTensorType(name, (), {"__module__": "torch.cuda", "dtype": dtype})
        patches.put(torch.cuda, name, made)
    patches.wrap(torch, "set_default_tensor_type", _set_default_tensor_type)
    patches.wrap(torch, "typename", _typename)


def _typename(original: Callable[[Any], str]) -> Callable[[Any], str]:
    def typename(obj: Any) -> str:
        """``torch.cuda.FloatTensor`` for a tensor there."""
        return obj.type() if type(obj) is torch.Tensor else original(obj)

    return typename


def _set_default_tensor_type(original: Callable[..., None]) -> Callable[..., None]:
    def set_default_tensor_type(kind: Any) -> None:
        """Such a type stands for its dtype and, of a CUDA one, for the device of new tensors."""
        if isinstance(kind, str) and kind.startswith("torch.cuda."):
            kind = getattr(torch.cuda, kind.rpartition(".")[2])
        if isinstance(kind, CudaTensorType):
            torch.set_default_dtype(kind.dtype)
            torch.set_default_device("cuda")
        else:
            original(kind)
            torch.set_default_device("cpu")

    return set_default_tensor_type
