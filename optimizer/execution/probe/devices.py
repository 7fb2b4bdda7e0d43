"""The CUDA devices that a script uses. The others are left alone: to set one up takes of its memory."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import threading
from contextlib import suppress

import torch

_own = threading.local()


def in_use() -> bool:
    """Whether the script has set CUDA up. Asked in this order: to ask whether there is a device sets the driver up,
    and processes that the script forks could then use none."""
    return torch.cuda.is_initialized() and torch.cuda.is_available()


def may_be_used() -> bool:
    """Whether there is a device that the script could use, asked of NVML: to ask the driver would settle which are visible
    before the script may have said so, and forbid them to the processes that it forks."""
    return torch.cuda.device_count() > 0


def is_capturing() -> bool:
    """Whether what is launched now goes into a CUDA graph: the device must not be waited for, nor values read."""
    if torch.compiler.is_compiling():  # then nothing is launched
        return False
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def synchronise() -> None:
    """Wait for the devices in use, unless a CUDA graph is being captured, where there is nothing to wait for."""
    if in_use() and not is_capturing():
        held = [n for n in range(torch.cuda.device_count()) if _holds_memory(n)]
        # An allocator that keeps nothing (PYTORCH_NO_CUDA_MEMORY_CACHING) counts nothing either.
        used = held or [torch.cuda.current_device()]
        _own.waiting = True
        try:
            for device in used:
                torch.cuda.synchronize(device)
        finally:
            _own.waiting = False


def is_waiting() -> bool:
    """Whether it is :func:`synchronise` that waits in this thread, and not the script."""
    return getattr(_own, "waiting", False)


def _holds_memory(device: int) -> bool:
    """Not by ``memory_reserved``: that flattens all statistics there are, which takes longer than a small phase."""
    try:
        statistics = torch.cuda.memory_stats_as_nested_dict(device)
    except RuntimeError:  # an allocator of the script's own that keeps none
        return device == torch.cuda.current_device()
    return bool(statistics.get("reserved_bytes", {}).get("all", {}).get("current"))


def peak_memory() -> int | None:
    """Bytes on all devices together, the most since the start or the last reset; None where nobody knows."""
    if in_use():
        with suppress(RuntimeError):  # an allocator of the script's own that keeps no statistics
            return sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    return None


def reset_peak_memory() -> None:
    """Count the peak from here on."""
    if in_use():
        with suppress(RuntimeError):
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
