"""``torch.Tensor`` on emulated devices: where it is, moving it, and what only the host can do with it."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]

from ..patches import Patches
from .legacy_types import CudaTensorType
from .marks import is_pinned, mark_of, pin, put
from .mixing import LEGACY_DTYPES, legacy_name
from .state import Devices

_base_device: Any = torch._C.TensorBase.device
_base_to: Any = torch._C.TensorBase.to
_NUMPY = (
    "can't convert {} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
    "memory first."
)


def patch_tensors(patches: Patches, devices: Devices) -> None:
    """Have tensors know the emulated device that they are on."""
    patches.put(torch.Tensor, "device", property(device_of))
    patches.put(torch.Tensor, "is_cuda", property(lambda tensor: device_of(tensor).type == "cuda"))
    patches.put(torch.Tensor, "is_cpu", property(lambda tensor: device_of(tensor).type == "cpu"))
    patches.put(torch.Tensor, "get_device", _get_device)
    patches.put(torch.Tensor, "to", _to(devices))
    patches.put(torch.Tensor, "cuda", _cuda(devices))
    patches.put(torch.Tensor, "cpu", _cpu(devices))
    patches.put(torch.Tensor, "type", _type(devices))
    patches.put(torch.Tensor, "type_as", lambda tensor, other: tensor.to(other))
    patches.put(torch.Tensor, "pin_memory", _pin_memory(devices))
    patches.put(torch.Tensor, "is_pinned", lambda tensor, device=None: is_pinned(tensor))
    patches.put(torch.Tensor, "record_stream", _record_stream)
    patches.wrap(torch.Tensor, "numpy", _numpy)


def device_of(tensor: Tensor) -> torch.device:
    """``tensor.device`` as the script sees it."""
    real: torch.device = _base_device.__get__(tensor)
    if real.type != "cpu":
        return real
    mark = mark_of(tensor)
    return mark if isinstance(mark, torch.device) else real


def transfer(
    tensor: Tensor,
    target: torch.device | None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Tensor:
    """A copy of ``tensor`` on ``target`` (None: on the host), through which gradients go back to its device."""
    dtype = dtype or tensor.dtype
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Transfer.apply(tensor, target, dtype, memory_format)  # pyright: ignore[reportReturnType]
    return _copied(tensor, target, dtype, memory_format)


def _copied(tensor, target, dtype, memory_format) -> Tensor:
    copy = functools.partial(_base_to, tensor, dtype, copy=True, memory_format=memory_format)
    if isinstance(tensor, UninitializedTensorMixin):  # refuses most functions
        with torch._C.DisableTorchFunctionSubclass():
            copied: Tensor = copy()
    else:
        copied = copy()
    put(copied, target)
    return copied


class _Transfer(torch.autograd.Function):
    """A copy between devices. torch's own backward would leave the gradient where it is: it sees one device."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor, target, dtype, memory_format):
        return _copied(tensor, target, dtype, memory_format)

    @staticmethod
    def setup_context(ctx, inputs, output):
        tensor = inputs[0]
        where = mark_of(tensor)
        ctx.origin = where if isinstance(where, torch.device) else None, tensor.dtype

    @staticmethod
    def backward(ctx, *gradients):
        where, dtype = ctx.origin
        return transfer(gradients[0], where, dtype), None, None, None


def _here(tensor: Tensor) -> torch.device | None:
    mark = mark_of(tensor)
    return mark if isinstance(mark, torch.device) else None


def _to(devices: Devices) -> Callable[..., Any]:
    @functools.wraps(_base_to)
    def to(self, *asked, **asked_by_name):
        device, args, kwargs = _device_asked(asked, asked_by_name)
        if device is None:
            return _base_to(self, *asked, **asked_by_name)
        if isinstance(device, torch.device) and device.type not in ("cpu", "cuda"):
            return _base_to(self, device, *args, **kwargs)
        target = devices.resolve(device)
        names = ("dtype", "non_blocking", "copy")
        wanted = {**dict(zip(names, args, strict=False)), **kwargs}
        dtype = wanted.get("dtype") or self.dtype
        copy, layout = wanted.get("copy", False), wanted.get("memory_format", torch.preserve_format)
        if target == _here(self):
            return _base_to(self, dtype, copy=copy, memory_format=layout)
        if target is not None:
            devices.copies.read_by_device(self)
        moved = transfer(self, target, dtype, layout)
        if not wanted.get("non_blocking", False):
            devices.copies.wait()
        elif target is None and moved.layout is torch.strided:
            pin(moved)  # as torch has it, so that the copy need not wait
            devices.copies.start(moved)
        elif is_pinned(self):
            devices.copies.leave(self)
        return moved

    return to


def _device_asked(args, kwargs) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What ``Tensor.to`` was asked to move to, if anything, and the arguments behind that."""
    kwargs = dict(kwargs)
    other = kwargs.pop("other", None)
    if args and isinstance(args[0], Tensor):
        other, args = args[0], args[1:]
    if other is not None:
        # to(other, non_blocking, copy): the dtype comes from the other tensor
        return other.device, (other.dtype, *args), kwargs
    device = kwargs.pop("device", None)
    if args and (args[0] is None or isinstance(args[0], (str, int, torch.device))):
        device, args = args[0], args[1:]
    if isinstance(device, str):
        device = torch.device(device)
    return device, args, kwargs


def _cuda(devices: Devices) -> Callable[..., Any]:
    def cuda(self, device=None, non_blocking=False, memory_format=torch.preserve_format):
        target = devices.resolve(_CURRENT if device is None else device)
        if target is None:
            raise RuntimeError(f"Invalid device, must be cuda device: {device}")
        if target == _here(self) and memory_format is torch.preserve_format:
            return self
        devices.copies.read_by_device(self)
        moved = transfer(self, target, None, memory_format)
        if not non_blocking:
            devices.copies.wait()
        elif is_pinned(self):
            devices.copies.leave(self)
        return moved

    return cuda


_CURRENT = torch.device("cuda")


def _cpu(devices: Devices) -> Callable[..., Any]:
    def cpu(self, memory_format=torch.preserve_format):
        if _here(self) is None:
            return _base_to(self, self.dtype, memory_format=memory_format)
        devices.copies.wait()
        return transfer(self, None, None, memory_format)

    return cpu


def _get_device(self) -> int:
    device = _here(self)
    return -1 if device is None else device.index


def _type(devices: Devices) -> Callable[..., Any]:
    base: Any = torch._C.TensorBase.type

    @functools.wraps(base)
    def type_(self, dtype=None, non_blocking=False, **kwargs):
        if dtype is None:
            return legacy_name(self.dtype, on_device=True) if self.is_cuda else base(self)
        if isinstance(dtype, torch.dtype):
            return base(self, dtype)
        if isinstance(dtype, str):
            place, _, name = dtype.rpartition(".")
            if place not in ("torch", "torch.cuda") or name not in LEGACY_DTYPES:
                return base(self, dtype)
            target = devices.resolve(_CURRENT) if place == "torch.cuda" else None
            return self.to(target or "cpu", LEGACY_DTYPES[name])
        if isinstance(dtype, CudaTensorType):
            return self.to(_CURRENT if _here(self) is None else _here(self), dtype.dtype)
        return base(self.cpu(), dtype)

    return type_


def _pin_memory(devices: Devices) -> Callable[..., Any]:
    def pin_memory(self, device=None):
        if self.is_cuda or self.layout is not torch.strided:
            kind = legacy_name(self.dtype, on_device=self.is_cuda)
            kind = kind if self.layout is torch.strided else kind.replace("torch.", "torch.sparse.")
            raise RuntimeError(f"cannot pin '{kind}' only dense CPU tensors can be pinned")
        devices.initialize()
        if is_pinned(self):
            return self
        pinned = _base_to(self, self.dtype, copy=True)
        pin(pinned)
        return pinned

    return pin_memory


def _record_stream(self, stream) -> None:
    if not self.is_cuda:
        raise RuntimeError("record_stream is only supported on CUDA tensors")


def _numpy(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def numpy(self, *, force=False):
        device = device_of(self)
        if device.type == "cuda" and not force:
            raise TypeError(_NUMPY.format(device))
        return original(self.cpu() if device.type == "cuda" else self, force=force)

    return numpy
