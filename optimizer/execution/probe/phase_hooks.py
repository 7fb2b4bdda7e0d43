"""The hooks that tell :class:`Phases` what the script is doing, and where it waits for the device."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .devices import is_waiting
from .gradient_hooks import grad_scalers
from .patches import Patches
from .phases import BACKWARD, CLEAR, COPY, DATA, EVALUATION, FORWARD, OPTIMIZER, SYNC, Phases

WAITING = (
    "item",
    "tolist",
    "cpu",
    "numpy",
    "nonzero",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
)
"""Methods of a tensor that need its values on the host. https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"""
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARIES = tuple(
    {os.path.dirname(os.path.abspath(__file__)) + os.sep, _TORCH}
    | {sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")}
    | {os.path.dirname(os.path.dirname(_TORCH)) + os.sep}
)


class PhaseHooks:
    """Installs hooks that open and close phases, and counts the places at which the host waits for the device."""

    def __init__(self, phases: Phases, patches: Patches) -> None:
        self._phases, self._patches = phases, patches
        self._in_module = threading.local()
        self._syncs: dict[tuple[str, int, str], list[float]] = {}
        self._loaders: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        # Held on to: it is read by itself when the script, and with it the loader, is gone.
        self._batches: dict[int, tuple[Any, int]] = {}
        self.counting = False

    def install(self) -> None:
        """Hook everything that has a phase of its own."""
        wrap = self._patches.wrap
        wrap(DataLoader, "__iter__", self._iter)
        wrap(_BaseDataLoaderIter, "__next__", self._next)
        wrap(torch.autograd, "backward", self._in_phase(BACKWARD))
        wrap(Optimizer, "zero_grad", self._in_phase(CLEAR))
        wrap(nn.Module, "zero_grad", self._in_phase(CLEAR))
        wrap(nn.Module, "__call__", self._module_call)
        for scaler in grad_scalers():
            for name in ("step", "unscale_", "update"):
                wrap(scaler, name, self._in_phase(OPTIMIZER))
        for name in ("to", "cuda"):
            wrap(Tensor, name, self._move)
        for name in WAITING:
            wrap(Tensor, name, functools.partial(self._wait, name))
        wrap(torch.cuda, "synchronize", functools.partial(self._wait, "torch.cuda.synchronize"))
        # Before the session's own: the step is over when the round is.
        for handle in (
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        ):
            self._patches.on_undo(handle.remove)

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._phases.begin(OPTIMIZER)

    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._phases.end()

    def _in_phase(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def wrapper(*args, **kwargs):
                if torch.compiler.is_compiling():
                    return original(*args, **kwargs)
                with self._phases.phase(name):
                    return original(*args, **kwargs)

            return wrapper

        return make

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(iterator):
            with self._phases.phase(DATA):
                batch = original(iterator)
            loader = self._loaders.get(iterator)
            if loader is not None:
                _, batches = self._batches.get(id(loader), (loader, 0))
                self._batches[id(loader)] = (loader, batches + 1)
            return batch

        return wrapper

    def _iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(loader):
            with self._phases.phase(DATA):
                iterator = original(loader)
            self._loaders[iterator] = loader
            return iterator

        return wrapper

    def _module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hooks = self

        @functools.wraps(original)
        def wrapper(self, *args, **kwargs):
            if torch.compiler.is_compiling() or getattr(hooks._in_module, "yes", False):
                return original(self, *args, **kwargs)
            if hooks._phases.inside(DATA):  # an augmentation, which is a module as well
                return original(self, *args, **kwargs)
            hooks._in_module.yes = True
            try:
                training = self.training and torch.is_grad_enabled()
                with hooks._phases.phase(FORWARD if training else EVALUATION):
                    return original(self, *args, **kwargs)
            finally:
                hooks._in_module.yes = False

        return wrapper

    def _move(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(tensor, *args, **kwargs):
            if torch.compiler.is_compiling() or not torch.cuda.is_initialized():
                return original(tensor, *args, **kwargs)
            started, around = time.perf_counter(), self._phases.innermost
            with self._phases.phase(COPY):
                moved = original(tensor, *args, **kwargs)
                if moved.device.type == "cpu":
                    self._phases.rename(SYNC if tensor.is_cuda else around)
            if tensor.is_cuda and not moved.is_cuda:
                self._waited("to", started)
            return moved

        return wrapper

    def _wait(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            if torch.compiler.is_compiling() or is_waiting() or not self._waits(args):
                return original(*args, **kwargs)
            started = time.perf_counter()
            with self._phases.phase(SYNC):
                result = original(*args, **kwargs)
            self._waited(name, started)
            return result

        return wrapper

    def _waits(self, args: tuple[Any, ...]) -> bool:
        """Whether the call needs a result of the device. Without CUDA those count that would, were it there."""
        if not torch.cuda.is_initialized():
            return not self._phases.inside(DATA)
        return not args or not isinstance(args[0], Tensor) or args[0].is_cuda

    def _waited(self, name: str, started: float) -> None:
        if not self.counting:
            return
        frame = sys._getframe(2)
        if frame.f_code.co_filename.startswith(_TORCH) and not torch.cuda.is_initialized():
            return  # a tensor on the CPU that torch reads for itself, as it would beside a GPU
        while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
            frame = frame.f_back
        if frame is not None:
            key = (frame.f_code.co_filename, frame.f_lineno, name.strip("_"))
            self._syncs.setdefault(key, []).append(time.perf_counter() - started)

    @property
    def training_loader(self) -> Any:
        """The loader that gave most batches, None without loaders."""
        found = max(self._batches.values(), key=lambda pair: pair[1], default=None)
        return found[0] if found else None

    def finish(self, rounds: int) -> list[dict[str, Any]]:
        """The ``SyncPoint`` fields of every place, the one that waited longest first."""
        found = [
            {
                "path": path,
                "line": line,
                "call": call,
                "calls": len(times) / rounds,
                "seconds": sum(times) / rounds,
            }
            for (path, line, call), times in self._syncs.items()
        ]
        return sorted(found, key=lambda point: (-point["seconds"], point["path"], point["line"]))
