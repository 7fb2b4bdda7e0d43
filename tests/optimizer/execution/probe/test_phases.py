"""Which phase the time belongs to, by a clock that is told what time it is."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

from torchopt_cli.optimizer.execution.probe.phases import Phases

pytestmark = pytest.mark.torch


class Hands:
    """The hands of a clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(time, "perf_counter", lambda: hands.now)
    monkeypatch.setattr(time, "process_time", lambda: hands.now / 2)
    return hands


def test_a_phase_inside_of_another_is_taken_out_of_it(hands: Hands) -> None:
    phases = Phases(nvtx=False)
    phases.start()
    hands.pass_(1)
    with phases.phase("forward"):
        hands.pass_(2)
        with phases.phase("sync"):
            hands.pass_(4)
        hands.pass_(8)
    hands.pass_(16)
    phases.round_ends()
    record = phases.finish()
    assert record["phases"] == [{"other": 17.0, "forward": 10.0, "sync": 4.0}]
    assert record["processor"] == [{"other": 8.5, "forward": 5.0, "sync": 2.0}]
    assert set(record["memory"]) <= {"other", "forward", "sync"}


def test_only_what_lies_between_start_and_stop_is_measured(hands: Hands) -> None:
    phases = Phases(nvtx=False)
    with phases.phase("data"):
        hands.pass_(1)
    phases.round_ends()
    with phases.phase("optimizer"):
        hands.pass_(1)
        phases.start()
        hands.pass_(2)
    phases.round_ends()
    hands.pass_(4)
    phases.round_ends()
    phases.stop()
    hands.pass_(8)
    phases.round_ends()
    assert phases.finish()["phases"] == [{"optimizer": 2.0, "other": 0.0}, {"other": 4.0}]


def test_a_phase_ends_with_what_raised_in_it(hands: Hands) -> None:
    phases = Phases(nvtx=False)
    phases.start()
    hands.pass_(2)
    with pytest.raises(ZeroDivisionError), phases.phase("forward"):
        hands.pass_(1 / 0)
    assert not phases.inside("forward")
    phases.round_ends()
    assert phases.finish()["phases"] == [{"forward": 0.0, "other": 2.0}]


def test_phases_are_nvtx_ranges_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    ranges: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", ranges.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: ranges.append("end"))
    phases = Phases(nvtx=True)
    with phases.phase("forward"), phases.phase("copy"):
        pass
    assert ranges == ["forward", "copy", "end", "end"]
