"""Switch the emulation on, in this process and in its threads."""

# pyright: reportPrivateUsage=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _python_dispatch

from ..patches import Patches
from .autocast import Autocast, patch_autocast
from .creation import patch_creation
from .legacy_types import patch_legacy_types
from .management import patch_management
from .mode import CudaMode
from .parallel import patch_parallel
from .recurrent import patch_recurrent
from .state import Devices
from .storages import patch_storages
from .tensors import patch_tensors


def emulate_cuda(patches: Patches, count: int) -> Devices:
    """Have this process see ``count`` CUDA devices, until ``patches`` are undone; gives them."""
    devices = Devices(count)
    mode = CudaMode(devices)
    patch_management(patches, devices)
    patch_tensors(patches, devices)
    patch_creation(patches, devices)
    patch_storages(patches, devices)
    patch_legacy_types(patches)
    patch_autocast(patches, Autocast())
    patch_parallel(patches, devices)
    patch_recurrent(patches)
    patches.wrap(torch, "ctc_loss", _with_lengths_beside)
    patches.wrap(torch, "compile", _without_a_compiler)
    patches.wrap(torch.autograd.profiler.profile, "__init__", _of_the_host)
    patches.wrap(threading.Thread, "start", functools.partial(_in_thread, devices))
    mode.__enter__()
    patches.on_undo(functools.partial(_leave, mode))
    return devices


def _leave(mode: CudaMode) -> None:
    """Have ``mode`` do nothing from here. It stays on the stack where the script is still inside of a mode of its own."""
    mode.active = False
    if _python_dispatch._get_current_dispatch_mode() is mode:
        mode.__exit__(None, None, None)


def _in_thread(devices: Devices, original: Callable[..., Any]) -> Callable[..., Any]:
    """Modes are a thread's own: have each new thread enter one."""

    @functools.wraps(original)
    def start(thread):
        run = thread.run

        def emulated():
            with CudaMode(devices):
                run()

        thread.run = emulated
        original(thread)

    return start


def _without_a_compiler(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile`` wraps as it always does, and runs the wrapped code as it is: a compiler sees no such device."""

    @functools.wraps(original)
    def compile(model=None, **kwargs):
        if model is None:
            return functools.partial(compile, **kwargs)
        return original(model, backend="eager", dynamic=kwargs.get("dynamic"))

    return compile


def _of_the_host(original: Callable[..., Any]) -> Callable[..., Any]:
    """Profilers see what the CPU does: the driver's events are not there, and asking for one for each operation takes long."""

    @functools.wraps(original)
    def initialize(self, *args, **kwargs):
        if kwargs.get("use_cuda") or kwargs.get("use_device") == "cuda":
            kwargs = {k: v for k, v in kwargs.items() if k not in ("use_cuda", "use_device")}
            kwargs["use_cpu"] = True
        original(self, *args, **kwargs)

    return initialize


def _with_lengths_beside(original: Callable[..., Any]) -> Callable[..., Any]:
    """A device takes lengths from either side; what torch does under a dispatch mode divides by them where they are."""

    @functools.wraps(original)
    def ctc_loss(log_probs, targets, input_lengths, target_lengths, *args, **kwargs):
        lengths = (
            length.to(log_probs.device) if isinstance(length, torch.Tensor) else length
            for length in (input_lengths, target_lengths)
        )
        return original(log_probs, targets, *lengths, *args, **kwargs)

    return ctc_loss
