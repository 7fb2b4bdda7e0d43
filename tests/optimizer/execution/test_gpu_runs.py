"""Whole scripts on a real GPU: what no emulation shows. A few minutes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_exact
from torchopt_cli.optimizer.execution.observations import Observations, Status
from torchopt_cli.optimizer.execution.profile_record import Phase
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion, run
from torchopt_cli.optimizer.execution.turn_taking import Start, run_in_turns
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import verify

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

Make = Callable[[Mapping[str, str]], Path]
Observe = Callable[..., Observations]

TRAIN = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 3, 16, 16), torch.randint(0, 4, (256,)))
    loader = DataLoader(data, batch_size=16, shuffle=True, pin_memory=True)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1568, 4)
    ).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(40):
        for x, y in loader:
            x, y = x.to("cuda", non_blocking=True), y.to("cuda")
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            last = loss.item()
"""
DROPPING = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 12, 64), torch.randint(0, 4, (256,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.2, batch_first=True)
            self.recur = nn.LSTM(64, 32, 2, dropout=0.3, batch_first=True)
            self.drop = nn.Dropout(0.25)
            self.decide = nn.Linear(32, 4)

        def forward(self, x):
            states, _ = self.recur(self.attend(x))
            return self.decide(self.drop(states[:, -1]))

    model = Net().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(40):
        for x, y in loader:
            x, y = x.to("cuda"), y.to("cuda")
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
NOISY = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 32)
            self.last = nn.Linear(32, 4)

        def forward(self, x):
            h = self.first(x)
            return self.last(torch.relu(h + 0.1 * torch.randn_like(h)))

    model = Net().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(40):
        for x, y in loader:
            x, y = x.to("cuda"), y.to("cuda")
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
RANKS = """
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 8), torch.randint(0, 4, (256,)))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), pin_memory=True)
    model = DistributedDataParallel(nn.Linear(8, 4).to(rank), device_ids=[rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    for epoch in range(40):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            x, y = x.to(rank, non_blocking=True), y.to(rank, non_blocking=True)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
"""
GRAPH = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Linear(8, 1).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 8, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        model(x).square().mean().backward()
        optimizer.step()
    for _ in range(5):
        graph.replay()
"""


def in_half(script: str) -> str:
    """``script`` with its forward pass under autocast."""
    region = '            with torch.autocast("cuda", torch.bfloat16):\n                loss = nn'
    return script.replace("            loss = nn", region)


@pytest.fixture
def python() -> Path:
    """One that starts anew: a fork cannot use the devices that its parent has seen."""
    return Path(sys.executable)


def test_an_observed_run_repeats_itself_and_tells_what_it_ran_on(
    project: Make, observe: Observe
) -> None:
    folder = project({"train.py": TRAIN})
    first, again = (observe(folder, steps=20) for _ in range(2))
    assert first.status is Status.STOPPED, first.failure_details
    assert first.unobserved == ()
    assert judge_exact(first, [again], again).outcome is Outcome.EQUIVALENT
    assert first.versions is not None
    assert first.versions.device == torch.cuda.get_device_name()
    assert first.versions.gpus == torch.cuda.device_count()
    assert (first.memory.device or 0) > 0


def test_convolutions_are_rounded_but_in_full_precision(project: Make, observe: Observe) -> None:
    folder = project({"train.py": TRAIN})
    rounded = torch.cuda.get_device_capability() >= (8, 0)
    assert observe(folder, steps=3).compute_dtypes == (("tfloat32",) if rounded else ())
    assert observe(folder, steps=3, full_precision=True).compute_dtypes == ()


def test_timed_runs_take_turns_on_one_device(project: Make, tmp_path: Path) -> None:
    folder = project({"train.py": TRAIN})
    settings = RunSettings(
        Path(sys.executable), folder, steps=100, mode=Mode.TIME, device_block_steps=10
    )
    version = ScriptVersion(folder / "train.py")
    found = run_in_turns([Start(version, settings, tmp_path / name) for name in "ab"], run)
    for one in found:
        assert one.status is Status.STOPPED, one.failure_details
        assert one.timing.asynchronous
        assert one.timing.synchronised == (*range(0, 100, 10), 99)
        assert one.timing.turns > 0


def test_a_profile_has_the_device_in_it(project: Make, observe: Observe) -> None:
    seen = observe(project({"train.py": TRAIN}), mode=Mode.PROFILE, steps=60, trace=True)
    assert seen.status is Status.STOPPED, seen.failure_details
    profile = seen.profile
    assert profile is not None
    assert all(phases[Phase.COPY] > 0.0 for phases in profile.phases)
    assert profile.memory[Phase.FORWARD] > 0
    assert [point.call for point in profile.syncs] == ["item"]
    # Without CUPTI (no permission to use its counters) nothing is known of kernels.
    if profile.device_busy_share is not None:
        assert 0.0 < profile.device_busy_share <= 1.0
        assert any(operator.device_seconds > 0.0 for operator in profile.operators)


def test_what_a_script_captures_does_not_fail_under_observation(
    project: Make, observe: Observe
) -> None:
    for mode in (Mode.OBSERVE, Mode.TIME):
        seen = observe(project({"train.py": GRAPH}), steps=10, mode=mode)
        assert seen.status is Status.COMPLETED, seen.failure_details
        assert seen.rounds == 3


@pytest.mark.parametrize("script", [TRAIN, DROPPING, NOISY])
def test_half_precision_is_told_from_another_learning_rate(project: Make, script: str) -> None:
    if not torch.cuda.is_bf16_supported():
        pytest.skip("no bfloat16")
    half = in_half(script)
    wrong = half.replace("lr=0.01", "lr=0.011")
    folder = project({"train.py": script, "half.py": half, "wrong.py": wrong})
    settings = VerifySettings(Path(sys.executable), folder, measure_speed=False)
    found = [
        verify(ScriptVersion(folder / "train.py"), ScriptVersion(folder / name), settings)
        for name in ("half.py", "wrong.py")
    ]
    outcomes = [report.verdict and report.verdict.outcome for report in found]
    assert outcomes == [Outcome.EQUIVALENT, Outcome.NOT_EQUIVALENT]


def test_a_network_that_drops_repeats_itself(project: Make, observe: Observe) -> None:
    folder = project({"train.py": DROPPING})
    first, again = (observe(folder, steps=20) for _ in range(2))
    assert first.status is Status.STOPPED, first.failure_details
    assert judge_exact(first, [again], again).outcome is Outcome.EQUIVALENT


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_float16_under_autocast(layer: str) -> None:
    """What the rewriter and the emulation assume; with another answer bfloat16 would be the better choice."""
    recurrent = getattr(torch.nn, layer)(8, 16).to("cuda")
    x = torch.randn(5, 3, 8, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert recurrent(x)[0].dtype is torch.float16


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.TIME])
def test_what_triton_compiles_runs_and_repeats_itself(
    project: Make, observe: Observe, tmp_path: Path, mode: Mode
) -> None:
    compiled = TRAIN.replace("    optimizer = torch", "    model.compile()\n    optimizer = torch")
    folder = project({"train.py": compiled})
    # Kernels are kept: the second run shows that those of another process are taken.
    how = dict(steps=20, mode=mode, timeout_s=300.0, cache=tmp_path / "kernels")
    first, again = (observe(folder, **how) for _ in range(2))
    for seen in (first, again):
        assert seen.status is Status.STOPPED, seen.failure_details
        assert seen.rounds == 20
        assert seen.unobserved == ()
    if mode is Mode.OBSERVE:
        assert judge_exact(first, [again], again).outcome is Outcome.EQUIVALENT


def test_a_compiled_network_trains_the_same(project: Make) -> None:
    compiled = TRAIN.replace("    optimizer = torch", "    model.compile()\n    optimizer = torch")
    folder = project({"train.py": TRAIN, "compiled.py": compiled})
    settings = VerifySettings(Path(sys.executable), folder, measure_speed=False)
    report = verify(
        ScriptVersion(folder / "train.py"), ScriptVersion(folder / "compiled.py"), settings
    )
    assert report.verdict is not None
    assert report.verdict.outcome is Outcome.EQUIVALENT, report.verdict.reason


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.TIME])
def test_ranks_on_gpus_of_their_own(project: Make, tmp_path: Path, mode: Mode) -> None:
    folder = project({"train.py": RANKS})
    settings = RunSettings(Path(sys.executable), folder, steps=20, mode=mode, timeout_s=180.0)
    seen = run(ScriptVersion(folder / "train.py", processes=2), settings, tmp_path / "run")
    assert seen.status is Status.STOPPED, seen.failure_details
    assert [rank.rounds for rank in seen.ranks] == [20, 20]
    if mode is Mode.OBSERVE:
        checksums = [
            {name: figures.checksum for name, figures in rank.steps[-1].parameters.items()}
            for rank in seen.ranks
        ]
        assert checksums[0] == checksums[1]
