"""To which phase the hooks give what a script does once CUDA is set up, on a device that is pretended."""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from torchopt_cli.optimizer.execution.probe.patches import Patches  # noqa: E402
from torchopt_cli.optimizer.execution.probe.phase_hooks import PhaseHooks  # noqa: E402
from torchopt_cli.optimizer.execution.probe.phases import Phases  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> Generator[Phases, None, None]:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    own = torch.Tensor.to

    def slow(*args: object, **kwargs: object) -> object:
        time.sleep(0.02)
        return own(*args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", slow)
    patches, found = Patches(), Phases(nvtx=False)
    PhaseHooks(found, patches).install()
    yield found
    patches.undo()


class Converted(Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(4, dtype=torch.uint8).to(torch.float32)


def test_a_conversion_on_the_host_belongs_to_what_asks_for_it(phases: Phases) -> None:
    """As a data set does when it makes its samples."""
    phases.start()
    list(DataLoader(Converted()))
    torch.ones(4, dtype=torch.float64).to(torch.float32)
    phases.round_ends()
    (found,) = phases.finish()["phases"]
    assert found.keys() == {"data", "other"}
    assert found["data"] > 0.03
    assert found["other"] > 0.01


def test_a_copy_from_the_host_is_a_copy(phases: Phases) -> None:
    phases.start()
    torch.ones(4).to("meta")
    phases.round_ends()
    assert "copy" in phases.finish()["phases"][0]


def test_waiting_at_the_edges_of_phases_is_no_wait_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[object] = []
    for name, value in {
        "is_initialized": True,
        "is_available": True,
        "is_current_stream_capturing": False,
        "device_count": 1,
        "memory_stats_as_nested_dict": {"reserved_bytes": {"all": {"current": 1}}},
        "max_memory_allocated": 1,
        "reset_peak_memory_stats": None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *args: waits.append(args))
    patches, phases = Patches(), Phases(nvtx=False)
    hooks = PhaseHooks(phases, patches)
    hooks.install()
    hooks.counting = True
    phases.start()
    assert waits == [(0,)]
    with phases.phase("forward"):
        pass
    torch.cuda.synchronize()
    phases.round_ends()
    patches.undo()
    assert [point["call"] for point in hooks.finish(1)] == ["torch.cuda.synchronize"]
    assert waits.count(()) == 1
    assert phases.rounds[0].keys() == {"forward", "sync", "other"}


def test_a_profiler_that_asks_for_stacks_finds_modules(phases: Phases) -> None:
    phases.start()
    with torch.profiler.profile(with_stack=True, with_modules=True):
        torch.nn.Linear(4, 2)(torch.ones(3, 4))
    phases.round_ends()
