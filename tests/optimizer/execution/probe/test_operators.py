"""What is made of the events of torch's profiler, on a device that is pretended."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from torchopt_cli.optimizer.execution.probe import operators as module

pytestmark = pytest.mark.torch

CPU, CUDA = SimpleNamespace(name="CPU"), SimpleNamespace(name="CUDA")


def event(kind: Any, start: float, end: float, *, annotation: bool = False) -> SimpleNamespace:
    """``start`` and ``end`` in microseconds."""
    times = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(device_type=kind, time_range=times, is_user_annotation=annotation)


def average(key: str, kind: Any, on_cpu: float, on_device: float) -> SimpleNamespace:
    return SimpleNamespace(
        key=key,
        device_type=kind,
        count=4,
        self_cpu_time_total=on_cpu,
        self_device_time_total=on_device,
    )


class FakeProfile:
    """Two rounds of 10 ms in which a device computes 4 ms, and the averages of what ran."""

    def __init__(self, activities: object) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def events(self) -> list[SimpleNamespace]:
        return [
            event(CPU, 0, 20_000),
            event(CUDA, 0, 20_000, annotation=True),
            event(CUDA, 1_000, 4_000),
            event(CUDA, 3_000, 5_000),
            event(CUDA, 11_000, 15_000),
        ]

    def key_averages(self) -> list[SimpleNamespace]:
        return [
            average("aten::mm", CPU, 2_000, 8_000),
            average("sm90_xmma_gemm_f32f32_tf32f32", CUDA, 0, 8_000),
            average("Optimizer.step#SGD.step", CUDA, 0, 20_000),
        ]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    now = [5.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module, "profile", FakeProfile)
    window = module.Operators(tmp_path, trace=False)
    window.start()
    for _ in range(2):
        now[0] += 0.01
        window.round_ends()
    now[0] += 30.0  # until the script's workers have ended
    return window.finish()


def test_the_device_is_busy_while_kernels_run_and_not_while_named_ranges_last(
    found: dict[str, Any],
) -> None:
    assert found["device_busy_share"] == pytest.approx(0.4)


def test_a_kernel_counts_once_for_the_operator_that_started_it(found: dict[str, Any]) -> None:
    assert found["operators"] == [
        {
            "name": "aten::mm",
            "calls": 2.0,
            "self_seconds": pytest.approx(0.001),
            "device_seconds": pytest.approx(0.004),
        }
    ]
