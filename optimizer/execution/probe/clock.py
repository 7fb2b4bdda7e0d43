"""When things happened: the times that a run reports, in both modes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import itertools
import time
from typing import Any

import torch

from . import devices
from .processor import processor_seconds
from .turns import Turns


class Clock:
    """Times of rounds and of waiting for data, in seconds; waits for the device at the edges of blocks only.

    Blocks are of ``block_steps`` rounds, or of ``device_block_steps`` where a device computes. With ``turns`` other runs
    have the machine between two blocks; that time counts nowhere.
    """

    def __init__(
        self,
        started: float,
        block_steps: int,
        device_block_steps: int,
        turns: Turns | None = None,
    ) -> None:
        self._started = started
        self._block_steps, self._device_block_steps = block_steps, device_block_steps
        self._turns = turns
        self._rested = 0.0
        self._training_began: float | None = None
        self._edges: list[float] = []
        self._waits: list[float] = []
        self._wait = 0.0
        self._synchronised: list[int] = []
        self._interludes: list[int] = []
        self._ahead = 0
        self._computed: list[float | None] = []

    def optimizer_built(self) -> None:
        """Training begins here, unless a loader is iterated afterwards."""
        self._begin()

    def loader_started(self, *, ahead: int = 0) -> None:
        """Training begins at the last of these before the first step; later ones belong to no step.

        ``ahead`` batches are made by workers before they are asked for.
        """
        self._ahead = max(self._ahead, ahead)
        self._begin()
        self.interlude()

    def interlude(self) -> None:
        """What comes before the next step is more than a step: an evaluation, or the start of an epoch."""
        if self._edges:
            self._interludes.append(len(self._edges) - 1)

    def _begin(self) -> None:
        if not self._edges:
            self._training_began = time.perf_counter()
            self._wait = 0.0

    def waited(self, seconds: float) -> None:
        """The script waited that long for a batch."""
        self._wait += seconds

    def edge(self, *, last: bool) -> None:
        """A round has had its first step."""
        first = not self._edges
        if first and _asynchronous():
            self._block_steps = self._device_block_steps
        ends_block = last or len(self._edges) % self._block_steps == 0
        if ends_block:
            devices.synchronise()
            self._synchronised.append(len(self._edges))
        if not first:
            self._waits.append(self._wait)
        self._wait = 0.0
        if last or first:
            self._computed.append(processor_seconds())
        self._edges.append(time.perf_counter() - self._rested)
        if ends_block and not last and self._turns is not None:
            self._rested += self._turns.rest()

    def finish(self) -> dict[str, Any]:
        """The fields of a ``Timing``."""
        edges, began = self._edges, self._training_began
        return {
            "total_seconds": time.perf_counter() - self._started - self._rested,
            "startup_seconds": None if began is None else began - self._started,
            "first_round_seconds": edges[0] - began if edges and began is not None else None,
            "round_seconds": [b - a for a, b in itertools.pairwise(edges)],
            "wait_seconds": self._waits,
            "interludes": sorted({n for n in self._interludes if n < len(self._waits)}),
            "workers": self._ahead > 0,
            "ahead": self._ahead,
            "synchronised": self._synchronised,
            "processor_seconds": self._computing(),
            "asynchronous": _asynchronous(),
            "turns": 0 if self._turns is None else self._turns.taken,
        }

    def _computing(self) -> float | None:
        """CPU time from the first edge to the last."""
        if len(self._computed) < 2:
            return None
        first, last = self._computed[0], self._computed[-1]
        return None if first is None or last is None else last - first


def _asynchronous() -> bool:
    """Whether steps return before they are computed."""
    if devices.in_use():
        return True
    return torch.backends.mps.is_available() or (hasattr(torch, "xpu") and torch.xpu.is_available())
