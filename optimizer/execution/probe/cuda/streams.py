"""Streams and events. Work on an emulated device is done when its call returns; only copies are waited for."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, NoReturn

import torch

from .state import Devices, NotEmulated


class Stream:
    """See torch.cuda.Stream."""

    devices: Devices
    cuda_stream = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.devices.initialize()
        self.device_index = self.devices.index(device)
        self.priority = priority
        self._outer: list[Any] = []

    @property
    def device(self) -> Any:
        """The device it is on."""
        return self.devices.resolve(self.device_index)

    def wait_event(self, event: Event) -> None:
        """All work is done already."""

    def wait_stream(self, stream: Stream) -> None:
        """All work is done already."""

    def synchronize(self) -> None:
        """Work is done already; copies to the host have come."""
        self.devices.copies.wait()

    def query(self) -> bool:
        """Whether all work is done: now it is."""
        self.devices.copies.wait()
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is captured on it: there are none."""
        return False

    def record_event(self, event: Event | None = None) -> Event:
        """An event that happens now."""
        made: Any = event or torch.cuda.Event()
        made.record(self)
        return made

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing to end."""


class Event:
    """See torch.cuda.Event; it tells the host's time."""

    devices: Devices

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._timed = enable_timing
        self._recorded: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """It happens now."""
        self._recorded = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """It has happened."""

    def synchronize(self) -> None:
        """It has happened, and copies to the host have come."""
        self.devices.copies.wait()

    def query(self) -> bool:
        """Whether it has happened: now it has."""
        self.devices.copies.wait()
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to ``end_event``."""
        if not (self._timed and end_event._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded is None or end_event._recorded is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._recorded - self._recorded) * 1000


class StreamContext:
    """See torch.cuda.stream: the stream is current inside."""

    def __init__(self, current: dict[int, Stream], stream: Stream | None) -> None:
        self._current, self._stream = current, stream
        self._outer: Stream | None = None

    def __enter__(self) -> None:
        if self._stream is not None:
            index = self._stream.device_index
            self._outer = self._current.get(index)
            self._current[index] = self._stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            if self._outer is None:
                self._current.pop(self._stream.device_index, None)
            else:
                self._current[self._stream.device_index] = self._outer


class CUDAGraph:
    """A class, since libraries name it in annotations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        graphs_missing()


def graphs_missing(*args: Any, **kwargs: Any) -> NoReturn:
    """What every entry to CUDA graphs comes to."""
    raise NotEmulated("CUDA graphs")
