"""Passes emulated devices from the operands of an operation to its results, and refuses what CUDA refuses."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .half import call
from .marks import UNDECIDED, Mark, Undecided, is_pinned, mark_of, pin, put, storages_of
from .mixing import check_generator, check_kernel, check_mixture, host_results
from .pending import WAITING
from .state import Devices

_HOST = torch.device("cpu")


class CudaMode(TorchDispatchMode):
    """Sees every operation of the thread that entered it."""

    def __init__(self, devices: Devices) -> None:
        super().__init__()
        self.active = True
        self._devices = devices

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        operands = list(tensors_in(args, kwargs.values()))
        marks = [mark_of(tensor) for tensor in operands]
        asked = kwargs.get("device")
        if kwargs.get("generator") is not None:
            drawing = self._devices.generators.get(kwargs["generator"]._cdata)
            check_generator("cpu" if drawing is None else drawing.type, asked, marks)
        if asked is None and not any(marks):
            return self._by_host(func, args, kwargs, operands)
        if asked is not None:
            kwargs = {**kwargs, "device": _HOST}
        if not operands and asked is not None:
            return self._made(func, args, kwargs, asked)
        on_device = {mark for mark in marks if isinstance(mark, torch.device)}
        if not on_device:
            return self._on_host(func, args, kwargs, asked, operands, marks)
        self._devices.initialize()
        check_kernel(func, operands)
        if None in marks or len(on_device) > 1:
            check_mixture(func, args, kwargs, operands, marks)
        target = next(iter(on_device))
        self._reads(func, args, marks)
        results = call(func, args, kwargs)
        self._waited(func.overloadpacket.__name__, args, kwargs, marks)
        for tensor, mark in zip(operands, marks, strict=True):
            if isinstance(mark, Undecided):
                put(tensor, target)
        # A device that C++ code took from a tensor's options is always the host; Python's bindings also say pin_memory.
        if asked is not None and (asked.type != "cpu" or "pin_memory" in kwargs):
            _put_fresh(results, operands, self._devices.resolve(asked))
        else:
            _put_fresh(results, operands, target)
        for result in host_results(func, results):
            put(result, None)
        return results

    def _by_host(self, func, args, kwargs, operands: list[Tensor]):
        """What nothing on a device has to do with."""
        results = func(*args, **kwargs)
        if self._devices.copies.watched and func._schema.is_mutable:
            self._devices.copies.written(operands)
        return results

    def _reads(self, func, args, marks: list[Mark]) -> None:
        """Have what a device copies from the host be what it copied there before."""
        if None in marks and func is torch.ops.aten.copy_.default:
            self._devices.copies.read_by_device(args[1])

    def _waited(self, name: str, args, kwargs, marks: list[Mark]) -> None:
        """Have copies come where the host waits for the device, and this one later where it does not."""
        copies = self._devices.copies
        if name in WAITING or (name == "index" and _by_mask(args[1])):
            copies.wait()
        elif name == "copy_" and len(marks) == 2 and marks[0] != marks[1]:
            not_waiting = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
            if marks[0] is None:
                copies.written_by_device(args[0])
            if not not_waiting:
                copies.wait()
            elif marks[0] is None and is_pinned(args[0]):
                copies.start(args[0])
            elif marks[1] is None and is_pinned(args[1]):
                copies.leave(args[1])

    def _made(self, func, args, kwargs, asked: torch.device):
        """What makes a tensor from nothing, on the device ``asked`` for."""
        target: Mark = self._devices.resolve(asked)
        if target is None and asked.type == "cpu" and "pin_memory" not in kwargs:
            target = UNDECIDED
        pinned = bool(kwargs.get("pin_memory"))
        if pinned:
            kwargs = {**kwargs, "pin_memory": False}
        if asked.type not in ("cpu", "cuda"):
            kwargs = {**kwargs, "device": asked}
        results = func(*args, **kwargs)
        for tensor in tensors_in((results,)):
            put(tensor, target)
            if pinned:
                pin(tensor)
        return results

    def _on_host(self, func, args, kwargs, asked, operands, marks):
        """No operand is known to be on a device."""
        if asked is not None and asked.type not in ("cpu", "cuda"):
            kwargs = {**kwargs, "device": asked}
        results = func(*args, **kwargs)
        if asked is not None and asked.type == "cuda":
            _put_fresh(results, operands, self._devices.resolve(asked))
        elif any(marks):
            undecided = all(marks)
            for tensor, mark in zip(operands, marks, strict=True):
                if isinstance(mark, Undecided) and not undecided and tensor.dim():
                    put(tensor, None)
            if undecided:
                _put_fresh(results, operands, UNDECIDED)
        return results


def _by_mask(indices: Iterable[Any]) -> bool:
    """Whether how much is taken hangs on values: the host waits for them."""
    return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices)


def tensors_in(*things: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among ``things`` and in lists among them."""
    for thing in things:
        for item in thing:
            if isinstance(item, Tensor):
                yield item
            elif isinstance(item, (list, tuple)):
                yield from tensors_in(item)


def _put_fresh(results: Any, operands: list[Tensor], target: Mark) -> None:
    """Note ``target`` for the results that are no operand and share no memory with one."""
    held: set[int] | None = None
    for tensor in tensors_in((results,)):
        if mark_of(tensor) == target:
            continue
        if held is None:
            held = {storage._cdata for operand in operands for storage in storages_of(operand)}
        if all(storage._cdata not in held for storage in storages_of(tensor)):
            put(tensor, target)
