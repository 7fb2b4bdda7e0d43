"""The emulated devices: how many, which is current, and whether this process may use them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import threading
from typing import Any

import torch

from .pending import PendingCopies

NAME = "emulated CUDA device"
CAPABILITY = (8, 0)
MEMORY = 16 << 30
"""Name, compute capability and bytes of each emulated device: of the first generation that knows every reduced type."""

BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
    "you must use the 'spawn' start method"
)
INVALID_DEVICE = "CUDA error: invalid device ordinal"


class NotEmulated(RuntimeError):
    """A feature of CUDA that the emulation does not have."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: not emulated by torchopt's --emulate-cuda")


class Devices:
    """``count`` emulated CUDA devices, set up in a process when first used."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.generators: dict[int, torch.device] = {}
        """The emulated devices of generators, by ``_cdata``: operations are given a fresh Python object of them."""
        self.copies = PendingCopies()
        self.used = False
        """Whether something was put on a device. That they are set up says less: PyTorch's optimizers do so by themselves."""
        self._current = threading.local()
        self._owner: int | None = None

    @property
    def current(self) -> int:
        """The current device of this thread."""
        return getattr(self._current, "index", 0)

    @current.setter
    def current(self, index: int) -> None:
        self._current.index = index

    @property
    def initialized(self) -> bool:
        """Whether this process has used a device."""
        return self._owner == os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this process was forked from one that had used a device."""
        return self._owner is not None and self._owner != os.getpid()

    def initialize(self) -> None:
        """Set up the devices in this process."""
        if self.forked:
            raise RuntimeError(BAD_FORK)
        self._owner = os.getpid()

    def index(self, device: Any = None) -> int:
        """The index of a CUDA ``device`` given as torch takes it: a device, a string, a number, None (current)."""
        if device is None:
            return self.current
        if isinstance(device, int):
            index = self.current if device < 0 else device
        else:
            device = torch.device(device)
            if device.type != "cuda":
                raise ValueError(f"Expected a cuda device, but got: {device}")
            index = self.current if device.index is None else device.index
        if index >= self.count:
            raise RuntimeError(INVALID_DEVICE)
        return index

    def resolve(self, device: Any) -> torch.device | None:
        """The emulated device meant by ``device``, with its index; None for any other device."""
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device) and device.type != "cuda":
            return None
        self.initialize()
        self.used = True
        return torch.device("cuda", self.index(device))
