"""Where the time of each round goes: one phase at a time, those inside of others taken out of them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from .devices import in_use, peak_memory, reset_peak_memory, synchronise

DATA, COPY, FORWARD, BACKWARD = "data", "copy", "forward", "backward"
CLEAR, OPTIMIZER, EVALUATION, SYNC, OTHER = "clear", "optimizer", "evaluation", "sync", "other"


class Phases:
    """Times the phases of rounds while ``measuring``, in seconds, waiting for the device at the edge of each."""

    def __init__(self, *, nvtx: bool) -> None:
        self.measuring = False
        self._nvtx = nvtx
        self._open: list[str] = []
        self._since = 0.0
        self._processor_since = 0.0
        self._round: dict[str, float] = {}
        self._processor: dict[str, float] = {}
        self._memory: dict[str, int] = {}
        self.device_peak = 0
        """The most bytes on devices before they were last counted anew, which is done at every edge."""
        self.rounds: list[dict[str, float]] = []
        self.processor_rounds: list[dict[str, float]] = []

    @contextmanager
    def phase(self, name: str) -> Generator[None, None, None]:
        """What runs inside belongs to ``name``, except for the phases inside of it."""
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    def begin(self, name: str) -> None:
        """What runs from here on belongs to ``name``."""
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)
        if self.measuring:
            self._account()
        self._open.append(name)

    def end(self) -> None:
        """The phase begun last is over."""
        if self.measuring:
            self._account()
        if self._open:
            self._open.pop()
            if self._nvtx:
                torch.cuda.nvtx.range_pop()

    @property
    def innermost(self) -> str:
        """The phase begun last of those that are open."""
        return self._open[-1] if self._open else OTHER

    def rename(self, name: str) -> None:
        """The phase begun last turns out to be ``name``."""
        self._open[-1] = name

    def inside(self, name: str) -> bool:
        """Whether a phase of that name is open."""
        return name in self._open

    def start(self) -> None:
        """Measure from here on."""
        synchronise()
        self.measuring = True
        self._round, self._processor = {}, {}
        self._since, self._processor_since = time.perf_counter(), time.process_time()
        self._memory_in_use()

    def round_ends(self) -> None:
        """What was measured since the last round belongs to one round."""
        if self.measuring:
            self._account()
            self.rounds.append(self._round)
            self.processor_rounds.append(self._processor)
            self._round, self._processor = {}, {}

    def stop(self) -> None:
        """Measure no more."""
        self.measuring = False

    def _account(self) -> None:
        """Give the time since the last edge to the innermost open phase."""
        synchronise()
        now, processor = time.perf_counter(), time.process_time()
        name = self.innermost
        self._round[name] = self._round.get(name, 0.0) + now - self._since
        self._processor[name] = self._processor.get(name, 0.0) + processor - self._processor_since
        self._memory[name] = max(self._memory.get(name, 0), self._memory_in_use())
        # What the accounting itself takes belongs to nobody.
        self._since, self._processor_since = time.perf_counter(), time.process_time()

    def _memory_in_use(self) -> int:
        """Bytes: the devices' peak since the last call, on the CPU what the process holds; 0 where it cannot be told."""
        if in_use():
            peak = peak_memory() or 0
            reset_peak_memory()
            self.device_peak = max(self.device_peak, peak)
            return peak
        try:
            with open("/proc/self/statm", encoding="ascii") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0

    def finish(self) -> dict[str, Any]:
        """The phases' part of a ``RunProfile``."""
        return {
            "phases": self.rounds,
            "processor": self.processor_rounds,
            "memory": {name: peak for name, peak in self._memory.items() if peak},
        }
