"""Timing waits for the device at the edges of blocks only, and its hooks leave nothing behind."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim import Optimizer  # noqa: E402
from torch.optim.optimizer import (  # noqa: E402
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)
from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: E402

pytestmark = pytest.mark.torch


def script() -> None:
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in DataLoader(torch.ones(40, 2), batch_size=1):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every wait for the device, of which there is one that does not exist."""
    found: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    statistics = {"reserved_bytes": {"all": {"current": 1}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: statistics)
    monkeypatch.setattr(torch.cuda, "synchronize", found.append)
    return found


def test_the_device_is_waited_for_at_the_edges_of_blocks_only(recorded, waits):
    run = recorded(script, mode="time", steps=31, block_steps=3, device_block_steps=10)
    assert run.timing.synchronised == (0, 10, 20, 30)
    assert waits == [0] * 4
    assert len(run.timing.round_seconds) == 30
    computed = run.timing.processor_seconds
    assert computed is None or computed > 0.0


def test_without_a_device_blocks_are_those_of_the_host(recorded):
    run = recorded(script, mode="time", steps=31, block_steps=10, device_block_steps=3)
    assert run.timing.synchronised == (0, 10, 20, 30)


def epochs_of_four_steps(evaluated_by_hand: bool) -> None:
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader, held_out = (DataLoader(torch.ones(4, 2), batch_size=1) for _ in range(2))
    for epoch in range(6):
        for step, x in enumerate(loader):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            if evaluated_by_hand and (epoch, step) == (1, 1):
                net.eval()
                net(torch.ones(4, 2))
                net.train()
        if not evaluated_by_hand:
            for x in held_out:
                net(x)


@pytest.mark.parametrize(
    ("evaluated_by_hand", "interludes"), [(False, (3, 7, 11)), (True, (3, 5, 7, 11))]
)
def test_rounds_that_hold_more_than_a_step_are_known(recorded, evaluated_by_hand, interludes):
    """Each is one, though two loaders begin in it."""
    run = recorded(lambda: epochs_of_four_steps(evaluated_by_hand), mode="time", steps=16)
    assert run.timing.interludes == interludes
    assert len(run.timing.round_seconds) == 15


@pytest.mark.parametrize("workers", [0, 1])
def test_whether_workers_worked_beside_the_script_is_known(recorded, workers):
    def reads():
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in DataLoader(torch.ones(8, 2), num_workers=workers):
            net(x).sum().backward()
            optimizer.step()

    timing = recorded(reads, mode="time", steps=4).timing
    assert timing.workers is bool(workers)
    assert timing.ahead == 2 * workers


def test_a_timed_run_reads_nothing_from_the_device(recorded, monkeypatch):
    """``item`` and its like would wait for it."""
    read: list[str] = []
    for name in ("item", "tolist", "cpu", "numpy", "__float__", "__bool__", "__int__"):
        own = getattr(torch.Tensor, name)

        def watched(tensor, *args, own=own, name=name):
            read.append(name)
            return own(tensor, *args)

        monkeypatch.setattr(torch.Tensor, name, watched)
    script()
    bare = list(read)
    read.clear()
    recorded(script, mode="time")
    assert read == bare


def test_everything_that_was_replaced_for_timing_is_put_back(recorded):
    places = (
        (Optimizer, "__init__"),
        (DataLoader, "__iter__"),
        (_BaseDataLoaderIter, "__next__"),
        (torch.autograd, "backward"),
        (torch.amp.GradScaler, "step"),
        (nn.Module, "__call__"),
        (nn.Module, "eval"),
    )
    before = [vars(owner).get(name) for owner, name in places]
    recorded(script, mode="time")
    assert [vars(owner).get(name) for owner, name in places] == before
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks
