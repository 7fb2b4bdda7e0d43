"""Which emulated device a tensor is on: an attribute of its storage's Python object.

torch keeps that object alive as long as the storage itself (since 2.1), and gives the same one again.
"""

# pyright: reportPrivateUsage=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

_DEVICE = "_torchopt_device"
_PINNED = "_torchopt_pinned"
_untyped_storage = torch._C.TensorBase.untyped_storage


class Undecided:
    """The device of what C++ code makes with another tensor's options, which do not tell an emulated device."""


UNDECIDED = Undecided()
Mark = torch.device | Undecided | None
"""The emulated CUDA device of a storage, None on the host."""


def storages_of(tensor: Tensor) -> list[Any]:
    """The storages that hold ``tensor``: one of a dense tensor, none of what has no storage at all."""
    layout = tensor.layout
    try:
        if layout is torch.strided:
            return [_untyped_storage(tensor)]
        if layout is torch.sparse_coo:
            return [_untyped_storage(part) for part in (tensor._values(), tensor._indices())]
        if layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = (tensor.values(), tensor.crow_indices(), tensor.col_indices())
            return [_untyped_storage(part) for part in parts]
        if layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = (tensor.values(), tensor.ccol_indices(), tensor.row_indices())
            return [_untyped_storage(part) for part in parts]
    except ValueError:  # a lazy module's parameter before its first call
        with torch._C.DisableTorchFunctionSubclass():
            return [_untyped_storage(tensor)]
    except (NotImplementedError, RuntimeError):  # vmap's and functionalization's wrappers
        unwrapped = _unwrapped(tensor)
        return [] if unwrapped is None else storages_of(unwrapped)
    return []


def _unwrapped(tensor: Tensor) -> Tensor | None:
    """What a wrapper of torch.func holds."""
    functorch = cast("Any", torch._C)._functorch
    if functorch.is_functorch_wrapped_tensor(tensor):
        return cast("Tensor", functorch.get_unwrapped(tensor))
    return None


def mark_of(tensor: Tensor) -> Mark:
    """Where ``tensor`` is, as noted."""
    for storage in storages_of(tensor):
        return getattr(storage, _DEVICE, None)
    return None


def mark_of_storage(storage: Any) -> Mark:
    """Where ``storage`` is, as noted."""
    return getattr(storage, _DEVICE, None)


def put(tensor: Tensor, where: Mark) -> None:
    """Note that ``tensor`` is at ``where``."""
    for storage in storages_of(tensor):
        put_storage(storage, where)


def put_storage(storage: Any, where: Mark) -> None:
    """Note that ``storage`` is at ``where``."""
    if where is None:
        storage.__dict__.pop(_DEVICE, None)
    else:
        setattr(storage, _DEVICE, where)


def is_pinned(tensor: Tensor) -> bool:
    """Whether the memory of ``tensor`` passes for page-locked."""
    return any(getattr(storage, _PINNED, False) for storage in storages_of(tensor))


def pin(tensor: Tensor) -> None:
    """Note that the memory of ``tensor`` is page-locked."""
    for storage in storages_of(tensor):
        setattr(storage, _PINNED, True)
