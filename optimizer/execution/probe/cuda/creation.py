"""What makes tensors from Python's data, and generators of random numbers, on an emulated device.

Other factories (``torch.zeros``) reach the dispatch mode with the device they were given. These would ask the driver
for the device before that.
"""

# pyright: reportPrivateUsage=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import DeviceContext

from ..patches import Patches
from .marks import put
from .state import Devices
from .tensors import transfer

_FROM_DATA = (
    "tensor",
    "sparse_coo_tensor",
    "sparse_compressed_tensor",
    "sparse_csr_tensor",
    "sparse_csc_tensor",
    "sparse_bsr_tensor",
    "sparse_bsc_tensor",
)
_AS_TENSOR = ("as_tensor", "asarray")


def patch_creation(patches: Patches, devices: Devices) -> None:
    """Replace these functions."""
    for name in _FROM_DATA:
        patches.wrap(torch, name, functools.partial(_from_data, devices))
    for name in _AS_TENSOR:
        patches.wrap(torch, name, functools.partial(_as_tensor, devices))
    patches.put(torch.Tensor, "new_tensor", _new_tensor)
    patches.put(torch.Tensor, "new", _new)
    patches.put(torch, "Generator", generator_class(devices))


def _default_device() -> torch.device | None:
    """The device of ``torch.set_default_device``, or of the innermost ``with device``."""
    modes: list[Any] = torch.overrides._get_current_function_mode_stack()
    return next((mode.device for mode in reversed(modes) if isinstance(mode, DeviceContext)), None)


def _from_data(devices: Devices, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        device = kwargs.get("device")
        if device is None:
            tensors = [thing for thing in args[:3] if isinstance(thing, torch.Tensor)]
            device = tensors[-1].device if tensors else _default_device()
        target = None if device is None else devices.resolve(device)
        if target is None:
            return original(*args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        args = tuple(thing.cpu() if isinstance(thing, torch.Tensor) else thing for thing in args)
        made = original(*args, **{**kwargs, "device": "cpu", "pin_memory": False})
        put(made, target)
        return made.requires_grad_(requires_grad)

    return wrapper


def _as_tensor(devices: Devices, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(data, dtype=None, device=None, **kwargs):
        if isinstance(data, torch.Tensor):
            made = data.to(data.device if device is None else device, dtype or data.dtype, **kwargs)
            return made
        device = _default_device() if device is None else device
        target = None if device is None else devices.resolve(device)
        if target is None:
            return original(data, dtype=dtype, device=device, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        made = original(data, dtype=dtype, device="cpu", **kwargs)
        return transfer(made, target).requires_grad_(requires_grad)

    return wrapper


def _new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, **kwargs):
    if isinstance(data, torch.Tensor):
        made = data.detach().to(self.device if device is None else device, dtype, copy=True)
        return made.requires_grad_(requires_grad)
    device = self.device if device is None else device
    return torch.tensor(
        data, dtype=dtype or self.dtype, device=device, requires_grad=requires_grad, **kwargs
    )


def _new(self, *args, **kwargs):
    base: Any = torch._C.TensorBase.new
    return base(self, *args).to(kwargs.get("device", self.device))


def generator_class(devices: Devices) -> type:
    """A ``torch.Generator`` that knows an emulated device. It draws as the CPU's does."""
    base: Any = torch._C.Generator

    class Generator(base):
        """See torch.Generator."""

        def __new__(cls, device="cpu"):
            target = devices.resolve(device)
            made = base.__new__(cls, "cpu" if target is not None else device)
            made._torchopt_device = target
            if target is not None:
                devices.generators[made._cdata] = target
                forget = weakref.finalize(made, devices.generators.pop, made._cdata, None)
                forget.atexit = False
            return made

        @property
        def device(self):
            """Where it draws."""
            return self._torchopt_device or torch.device("cpu")

    Generator.__module__, Generator.__qualname__ = "torch._C", "Generator"
    return Generator
