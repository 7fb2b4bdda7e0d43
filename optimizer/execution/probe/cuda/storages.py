"""Storages on emulated devices: what copying, saving and loading tensors goes through."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

from typing import Any

import torch

from ..patches import Patches
from .marks import mark_of_storage, put_storage
from .state import Devices, NotEmulated

_base_device: Any = vars(torch._C.StorageBase)["device"]


def patch_storages(patches: Patches, devices: Devices) -> None:
    """Have storages know their device, and go to another."""

    def cuda(self, device=None, non_blocking=False):
        target = devices.resolve("cuda" if device is None else device)
        return self if mark_of_storage(self) == target else _copied(self, target)

    def to(self, *, device, non_blocking=False):
        target = devices.resolve(device)
        return self if mark_of_storage(self) == target else _copied(self, target)

    storage = torch.UntypedStorage
    patches.put(storage, "device", property(_device))
    patches.put(storage, "is_cuda", property(lambda self: _device(self).type == "cuda"))
    patches.put(storage, "cuda", cuda)
    patches.put(storage, "cpu", lambda self: _copied(self, None) if _on_device(self) else self)
    patches.put(storage, "to", to)
    patches.put(storage, "clone", lambda self: _copied(self, mark_of_storage(self)))
    patches.put(storage, "get_device", lambda self: _device(self).index if _on_device(self) else -1)
    patches.put(storage, "_share_cuda_", _share)


def _device(self) -> torch.device:
    mark = mark_of_storage(self)
    return mark if isinstance(mark, torch.device) else _base_device.__get__(self)


def _on_device(self) -> bool:
    return isinstance(mark_of_storage(self), torch.device)


def _copied(self, target) -> Any:
    copied = type(self)(self.nbytes()).copy_(self, False)
    put_storage(copied, target)
    return copied


def _share(self) -> None:
    raise NotEmulated("handing CUDA tensors to another process")
