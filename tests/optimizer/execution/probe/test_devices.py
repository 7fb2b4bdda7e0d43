"""Which devices are waited for and whose memory counts, on devices that are pretended."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchopt_cli.optimizer.execution.probe import devices  # noqa: E402
from torchopt_cli.optimizer.execution.probe.phases import Phases  # noqa: E402

pytestmark = pytest.mark.torch


class Gpus:
    """So many devices, the memory that each holds, and the peaks since they were last reset."""

    def __init__(self, held: dict[int, int]) -> None:
        self.held = dict(held)
        self.peaks = dict(held)
        self.waits: list[int] = []
        self.capturing = False
        self.keeps_statistics = True

    def statistics(self, device: int) -> dict[str, Any]:
        self._ask()
        return {"reserved_bytes": {"all": {"current": self.held[device]}}}

    def peak(self, device: int) -> int:
        self._ask()
        return self.peaks[device]

    def reset(self, device: int) -> None:
        self._ask()
        self.peaks[device] = self.held[device]

    def _ask(self) -> None:
        if not self.keeps_statistics:
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    found = Gpus({0: 0, 1: 100, 2: 20})
    replaced = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: len(found.held),
        "current_device": lambda: 1,
        "is_current_stream_capturing": lambda: found.capturing,
        "memory_stats_as_nested_dict": found.statistics,
        "max_memory_allocated": found.peak,
        "reset_peak_memory_stats": found.reset,
        "synchronize": found.waits.append,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(torch.cuda, name, function)
    return found


def test_devices_that_hold_nothing_are_not_set_up_by_waiting_for_them(gpus: Gpus) -> None:
    devices.synchronise()
    assert gpus.waits == [1, 2]


def test_without_a_caching_allocator_the_current_device_is_waited_for(gpus: Gpus) -> None:
    gpus.held = dict.fromkeys(gpus.held, 0)
    devices.synchronise()
    assert gpus.waits == [1]


def test_nothing_is_waited_for_while_a_graph_is_captured(gpus: Gpus) -> None:
    gpus.capturing = True
    devices.synchronise()
    assert gpus.waits == []


def test_an_allocator_without_statistics_is_no_failure(gpus: Gpus) -> None:
    gpus.keeps_statistics = False
    devices.synchronise()
    devices.reset_peak_memory()
    assert gpus.waits == [1]
    assert devices.peak_memory() is None


def test_the_peak_is_that_of_all_devices_and_outlives_its_resets(gpus: Gpus) -> None:
    gpus.peaks = {0: 0, 1: 700, 2: 50}
    assert devices.peak_memory() == 750
    phases = Phases(nvtx=False)
    phases.start()
    with phases.phase("forward"):
        gpus.peaks[1] = 300
    phases.round_ends()
    assert phases.finish()["memory"] == {"other": 120, "forward": 320}
    assert devices.peak_memory() == 120
    assert phases.device_peak == 750


def test_without_cuda_there_is_nothing_to_wait_for_or_to_count() -> None:
    devices.synchronise()
    devices.reset_peak_memory()
    assert devices.peak_memory() is None
    assert not devices.is_capturing()
