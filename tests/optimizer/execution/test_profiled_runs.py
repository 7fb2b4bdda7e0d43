"""Profiled runs of real scripts: what is recorded of them, and that it is about the right things."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import Observations, Status
from torchopt_cli.optimizer.execution.profile_record import Phase
from torchopt_cli.optimizer.execution.runner import Mode

pytestmark = pytest.mark.torch

Project = Callable[[Mapping[str, str]], Path]

TRAIN = """
    import time
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Augmentation(nn.Module):
        def forward(self, value):
            time.sleep(SLEEP)
            return value

    class Slow(Dataset):
        augmented = Augmentation()
        def __len__(self):
            return 24
        def __getitem__(self, index):
            value = self.augmented(torch.randn(4))
            return value * value.sum().item(), index

    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    seen = []
    for epoch in range(EPOCHS):
        for x, index in DataLoader(Slow(), batch_size=4, shuffle=True):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            seen.append(float(loss.item()))
        net.eval()
        with torch.no_grad():
            net(torch.ones(2, 4))
        net.train()
    open("seen.txt", "w").write(str(len(seen)))
"""


def script(sleep: float, epochs: int) -> dict[str, str]:
    return {"train.py": TRAIN.replace("SLEEP", str(sleep)).replace("EPOCHS", str(epochs))}


def test_a_slow_dataset_is_seen_as_waiting_for_data(
    project: Project, observe: Callable[..., Observations]
) -> None:
    folder = project(script(0.02, 10))
    run = observe(folder, mode=Mode.PROFILE, steps=40, trace=True)
    assert run.status is Status.STOPPED
    assert run.profile is not None
    profile = run.profile
    assert profile.plain_rounds == (8, 20)
    assert profile.phase_rounds == (11, 17, *range(20, 32))  # epochs begin in two of the others
    for phases in profile.phases:
        assert phases[Phase.DATA] > 0.08 > 0.0
        assert {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.CLEAR} <= phases.keys()
        assert Phase.COPY not in phases
    by_round = dict(zip(profile.phase_rounds, profile.phases, strict=True))
    evaluated = [number for number, phases in by_round.items() if Phase.EVALUATION in phases]
    assert evaluated == [11, 17, 23, 29]
    assert all(cpu[Phase.DATA] < 0.08 for cpu in profile.processor)  # asleep, not busy
    assert profile.device_busy_share is None
    assert profile.loader is not None
    assert (profile.loader.workers, profile.loader.batch_samples) == (0, 4.0)
    assert profile.loader.batch_seconds > 0.08
    assert "aten::addmm" in {operator.name for operator in profile.operators}
    trace = json.loads((run.folder / str(profile.trace_file)).read_text())
    assert trace["traceEvents"]


def test_syncs_are_counted_at_the_line_of_the_script_and_not_in_the_dataset(
    project: Project, observe: Callable[..., Observations]
) -> None:
    folder = project(script(0.0, 10))
    profile = observe(folder, mode=Mode.PROFILE, steps=40).profile
    assert profile is not None
    line = 1 + (folder / "train.py").read_text().splitlines().index(
        "        seen.append(float(loss.item()))"
    )
    (point,) = profile.syncs
    assert (point.path, point.line, point.call) == (str(folder / "train.py"), line, "item")
    assert point.calls == 1.0
    assert profile.trace_file is None


@pytest.mark.slow
def test_a_script_that_ends_early_is_profiled_as_far_as_it_goes(
    project: Project, observe: Callable[..., Observations]
) -> None:
    run = observe(project(script(0.0, 1)), mode=Mode.PROFILE, steps=100)
    assert run.status is Status.COMPLETED
    assert run.rounds == 6
    assert run.profile is not None
    assert run.profile.phases == ()


def test_a_resident_batch_takes_the_loader_out_of_the_step(
    project: Project, observe: Callable[..., Observations]
) -> None:
    folder = project(script(0.05, 3))
    run = observe(folder, mode=Mode.TIME, steps=18, block_steps=1, resident_batch=True)
    assert run.rounds == 18
    assert run.status is Status.STOPPED
    assert sorted(run.timing.wait_seconds)[8] < 0.05
    run = observe(folder, mode=Mode.TIME, steps=100, block_steps=1, resident_batch=True)
    assert run.status is Status.COMPLETED
    assert run.rounds == 18  # passes are as long as before


@pytest.mark.slow
def test_a_profile_leaves_the_users_files_alone(
    project: Project,
    observe: Callable[..., Observations],
    tree: Callable[[Path], object],
) -> None:
    folder = project(script(0.0, 2))
    before = tree(folder)
    assert observe(folder, mode=Mode.PROFILE, steps=100).status is Status.COMPLETED
    assert tree(folder) == before
