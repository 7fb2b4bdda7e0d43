"""What torch's own profiler says of a few rounds: which operators ran, and for how long the device had nothing to do."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from .devices import in_use, synchronise

TRACE = "trace.json"
_MOST_OPERATORS = 40


class Operators:
    """A window of ``torch.profiler``; ``trace`` has it write a Chrome trace into ``folder``."""

    def __init__(self, folder: Path, *, trace: bool) -> None:
        self._folder, self._trace = folder, trace
        self._profiler: profile | None = None
        self._started = 0.0
        self._ended = 0.0
        self._rounds = 0

    def start(self) -> None:
        """Write down operators from here on."""
        activities = [ProfilerActivity.CPU]
        if in_use():
            activities.append(ProfilerActivity.CUDA)
        synchronise()
        self._profiler = profile(activities=activities)
        self._profiler.start()
        self._started = self._ended = time.perf_counter()

    def round_ends(self) -> None:
        """A round is complete."""
        if self._profiler is not None:
            self._rounds += 1
            self._ended = time.perf_counter()

    def finish(self) -> dict[str, Any]:
        """The operators' part of a ``RunProfile``: times are seconds per round."""
        nothing: dict[str, Any] = {"operators": [], "device_busy_share": None, "trace_file": None}
        if self._profiler is None or self._rounds == 0:
            return nothing
        self._profiler.stop()
        if self._trace:
            self._profiler.export_chrome_trace(str(self._folder / TRACE))
        averages = self._profiler.key_averages()
        # A kernel counts for the operator that started it, and has a row of its own besides.
        rows = [self._row(one) for one in averages if one.device_type.name == "CPU"]
        rows.sort(key=lambda row: -max(row["self_seconds"], row["device_seconds"]))
        return {
            "operators": rows[:_MOST_OPERATORS],
            "device_busy_share": self._busy_share(self._ended - self._started),
            "trace_file": TRACE if self._trace else None,
        }

    def _row(self, average: Any) -> dict[str, Any]:
        # Named after CUDA before torch 2.4.
        device = getattr(average, "self_device_time_total", None)
        if device is None:
            device = getattr(average, "self_cuda_time_total", 0.0)
        return {
            "name": str(average.key),
            "calls": average.count / self._rounds,
            "self_seconds": average.self_cpu_time_total / 1e6 / self._rounds,
            "device_seconds": device / 1e6 / self._rounds,
        }

    def _busy_share(self, seconds: float) -> float | None:
        """The part of the time in which a kernel or a copy ran on the device; None on the CPU."""
        assert self._profiler is not None
        spans = sorted(
            (event.time_range.start, event.time_range.end)
            for event in self._profiler.events() or ()
            if event.device_type.name == "CUDA"
            # What a range named by torch or the script spans on the device, with the gaps in it.
            and not getattr(event, "is_user_annotation", False)
        )
        if not spans:
            return None
        busy, reached = 0.0, spans[0][0]
        for start, end in spans:
            busy += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        return min(1.0, busy / 1e6 / seconds)
