"""CUDA's autocast for tensors on emulated devices.

To torch these tensors are the CPU's, so it asks the AutocastCPU kernels of an operation, which follow another list.
They are replaced here by kernels that do what CUDA's do to tensors on an emulated device, and what the CPU's do to the
others. They sit where torch's own sit: above autograd, and below every caller in C++.
"""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..patches import Patches
from . import autocast_ops as lists
from .marks import mark_of

_KEY = "AutocastCPU"
_BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using "
    "torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)

_to: Any = torch._C.TensorBase.to
"""What is replaced for the script's sake is not for this."""


class Autocast:
    """Whether autocast is enabled, by device and thread, and the casts of parameters kept for a region."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.library: Any = None

    def enabled(self, device: str) -> bool:
        """Whether autocast is enabled for ``device``."""
        return bool(getattr(self._local, device, False))

    def enable(self, device: str, enabled: bool) -> None:
        """Enable or disable it."""
        setattr(self._local, device, enabled)
        asked = self.enabled("cpu") or self.enabled("cuda")
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, not asked)

    @property
    def cache(self) -> dict[int, tuple[Any, Tensor]]:
        """Parameters cast in this region, by id, each with a reference to what was cast."""
        if not hasattr(self._local, "cache"):
            self._local.cache = {}
        return self._local.cache

    def cast(self, thing: Any, dtype: torch.dtype, on_device: bool) -> Any:
        """``thing`` with every tensor in it that is there and no float64 cast to ``dtype``."""
        if isinstance(thing, (list, tuple)):
            return type(thing)(self.cast(item, dtype, on_device) for item in thing)
        if not _eligible(thing, on_device) or thing.dtype is dtype:
            return thing
        keep = (
            torch.is_autocast_cache_enabled()
            and dtype is not torch.float32
            and thing.dtype is torch.float32
            and thing.requires_grad
            and thing.is_leaf
            and not thing._is_view()
        )
        if not keep:
            return _to(thing, dtype)
        known = self.cache.get(id(thing))
        if known is not None and known[0]() is thing and known[1].dtype is dtype:
            return known[1]
        cast = _to(thing, dtype)
        self.cache[id(thing)] = weakref.ref(thing), cast
        return cast


def patch_autocast(patches: Patches, autocast: Autocast) -> None:
    """Replace the kernels, and the functions that switch autocast on and off."""
    autocast.library = library = torch.library.Library("aten", "IMPL")
    names: list[str] = torch._C._dispatch_get_all_op_names()
    known = [name for name in names if name.startswith("aten::") and _has_policy(name)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there was a kernel before
        for name in known:
            library.impl(
                name.removeprefix("aten::"), _kernel(name, autocast), _KEY, with_keyset=True
            )
    patches.on_undo(library._destroy)
    _patch_switches(patches, autocast)


def _has_policy(name: str) -> bool:
    base, _, overload = name.removeprefix("aten::").partition(".")
    if overload in ("out", "Scalar_out") or overload.endswith("_out"):
        return False
    has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    recurrent = base in lists.RECURRENT and overload in ("input", "data")
    return recurrent or has_kernel(name, "AutocastCUDA") or has_kernel(name, _KEY)


def _kernel(name: str, autocast: Autocast) -> Callable[..., Any]:
    base, _, overload = name.removeprefix("aten::").partition(".")
    packet: Any = getattr(torch.ops.aten, base)
    operation: Any = getattr(packet, overload or "default")
    has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    on_cuda = has_kernel(name, "AutocastCUDA") or base in lists.RECURRENT
    policy = _policy(base) if on_cuda else None
    host_policy = _host_policy(base) if has_kernel(name, _KEY) else None
    key: Any = getattr(torch._C.DispatchKey, _KEY)
    below: Any = torch._C.DispatchKeySet(key)

    def kernel(keys, *args, **kwargs):
        on_device = any(
            isinstance(mark_of(tensor), torch.device) for tensor in _tensors(args, kwargs.values())
        )
        change = policy if on_device else host_policy
        if change is None or not autocast.enabled("cuda" if on_device else "cpu"):
            # What it calls in its turn may have a policy: autocast stays on inside.
            with torch._C.DisableTorchFunction():
                return operation.redispatch(keys.remove(key), *args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(below), torch._C.DisableTorchFunction():
            call, args, kwargs = change(autocast, operation, args, kwargs, on_device)
            return call(*args, **kwargs)

    return kernel


def _policy(base: str) -> Callable[..., Any] | None:
    """What CUDA's autocast does before an operation: gives what to call, and with what. None: nothing."""
    if base in lists.LOWER:
        return functools.partial(_cast_to, None)
    if base in lists.RECURRENT:
        return _recurrent
    if base in lists.FLOAT32:
        return functools.partial(_cast_to, torch.float32)
    if base in lists.FLOAT32_RESULT:
        return _with_float32_result
    if base in lists.FLOAT32_NORM:
        return _norm
    if base in lists.WIDEST:
        return _widest
    if base in lists.BANNED:
        return _refuse
    return None


def _host_policy(base: str) -> Callable[..., Any]:
    if base in lists.HOST_LOWER:
        return functools.partial(_cast_to, None)
    return _widest if base in lists.HOST_WIDEST else functools.partial(_cast_to, torch.float32)


def _lower(on_device: bool) -> torch.dtype:
    return get_dtype("cuda" if on_device else "cpu")


def _cast_to(dtype, autocast, operation, args, kwargs, on_device):
    dtype = dtype or _lower(on_device)
    kwargs = {key: autocast.cast(value, dtype, on_device) for key, value in kwargs.items()}
    return operation, autocast.cast(tuple(args), dtype, on_device), kwargs


def _recurrent(autocast, operation, args, kwargs, on_device):
    without_cudnn = args[0].dtype is torch.bfloat16
    dtype = _lower(on_device) if without_cudnn else torch.float16
    return _cast_to(dtype, autocast, operation, args, kwargs, on_device)


def _with_float32_result(autocast, operation, args, kwargs, on_device):
    if not _eligible(args[0], on_device):
        return operation, args, kwargs
    names = [argument.name for argument in operation._schema.arguments]
    position = names.index("dtype")
    if position < len(args):
        dtype = args[position] or torch.float32
        return operation, (*args[:position], dtype, *args[position + 1 :]), kwargs
    if kwargs.get("dtype") is None:
        kwargs = {**kwargs, "dtype": torch.float32}
    return operation, args, kwargs


def _norm(autocast, operation, args, kwargs, on_device):
    """norm(self, p) and norm(self, p, dim, keepdim), with a dtype behind."""
    tensor = args[0]
    dtype = torch.float32 if _eligible(tensor, on_device) else tensor.dtype
    norm: Any = torch.ops.aten.norm
    given = dict(zip(("self", "p", "dim", "keepdim"), args, strict=False)) | kwargs
    p = given.get("p", 2)
    if operation is norm.Scalar:
        return norm.ScalarOpt_dtype, (tensor, p), {"dtype": dtype}
    rest = (tensor, p, given["dim"], given.get("keepdim", False))
    return norm.ScalarOpt_dim_dtype, rest, {"dtype": dtype}


def _widest(autocast, operation, args, kwargs, on_device):
    tensors = [t for t in _tensors(args, kwargs.values()) if _eligible(t, on_device)]
    wide = any(tensor.dtype is torch.float32 for tensor in tensors)
    dtype = torch.float32 if wide else _lower(on_device)
    return _cast_to(dtype, autocast, operation, args, kwargs, on_device)


def _refuse(*_: Any) -> Any:
    raise RuntimeError(_BANNED)


def _eligible(thing: Any, on_device: bool) -> bool:
    return (
        isinstance(thing, Tensor)
        and thing.is_floating_point()
        and thing.dtype is not torch.float64
        and isinstance(mark_of(thing), torch.device) == on_device
    )


def _tensors(*things: Any) -> Iterator[Tensor]:
    for thing in things:
        for item in thing:
            if isinstance(item, Tensor):
                yield item
            elif isinstance(item, (list, tuple)):
                yield from _tensors(item)


def get_dtype(device: str) -> torch.dtype:
    """The lower precision of autocast on ``device``."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device)
    legacy: Any = torch
    return legacy.get_autocast_gpu_dtype() if device == "cuda" else legacy.get_autocast_cpu_dtype()


def _patch_switches(patches: Patches, autocast: Autocast) -> None:
    """The CPU's switch is needed for the kernels above, so what the script sees of it is kept apart."""

    def is_enabled(device="cuda", *, device_type=None):
        device = device_type or device
        return autocast.enabled(device) if device in ("cpu", "cuda") else other_enabled(device)

    def set_enabled(*args, **kwargs):
        # set_autocast_enabled(device_type, enabled), before torch 2.4 set_autocast_enabled(enabled) for CUDA
        args = (*args, *(kwargs[key] for key in ("device_type", "enabled") if key in kwargs))
        device, enabled = args if len(args) == 2 else ("cuda", args[0])
        if device in ("cpu", "cuda"):
            autocast.enable(device, enabled)
        else:
            set_other(device, enabled)

    def clear() -> None:
        autocast.cache.clear()
        clear_other()

    other_enabled: Any = torch.is_autocast_enabled
    set_other: Any = torch.set_autocast_enabled
    clear_other: Any = torch.clear_autocast_cache
    patches.put(torch, "is_autocast_enabled", is_enabled)
    patches.put(torch, "set_autocast_enabled", set_enabled)
    patches.put(torch, "clear_autocast_cache", clear)
    patches.put(torch, "is_autocast_cpu_enabled", lambda: autocast.enabled("cpu"))
    patches.put(torch, "set_autocast_cpu_enabled", lambda on: autocast.enable("cpu", on))
    patches.on_undo(lambda: torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, True))
