"""Scripts that start their processes by themselves: each is observed, and judged against its like."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.observations import Observations, Status
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion, run
from torchopt_cli.optimizer.verifying.result import VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import verify

pytestmark = pytest.mark.torch

ENVIRONMENT = {"OMP_NUM_THREADS": "1"}

TRAIN = """\
import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def samples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    points = torch.randn(count, 8, generator=generator) + labels[:, None]
    return TensorDataset(points, labels)


def worker(rank, world_size, epochs, meeting):
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=world_size)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data = samples(48, 1)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        net.train()
        for points, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(points), labels)
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            print(f"rank {rank}, epoch {epoch}: {net(data.tensors[0]).sum().item():.3f}")
        if rank == 0:
            torch.save(getattr(net, "module", net).state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=9)
    args = parser.parse_args()
    meeting = os.path.join(os.environ["TMPDIR"], "meeting")
    START
    print("all done")
"""
SPAWN = "mp.spawn(worker, args=(2, args.epochs, meeting), nprocs=2)"
FORK = """processes = [mp.Process(target=worker, args=(n, 2, args.epochs, meeting)) for n in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()"""


def written(folder: Path, start: str = SPAWN, name: str = "train.py") -> Path:
    (folder / name).write_text(TRAIN.replace("START", start))
    return folder / name


def observed(script: Path, folder: Path, *args: str, mode: Mode = Mode.OBSERVE) -> Observations:
    settings = RunSettings(
        Path(sys.executable), script.parent, steps=14, mode=mode, env=ENVIRONMENT
    )
    return run(ScriptVersion(script, args=args), settings, folder)


def test_spawned_processes_are_the_ranks_of_the_run(tmp_path: Path) -> None:
    seen = observed(written(tmp_path), tmp_path / "run")
    assert (seen.status, seen.rounds, len(seen.ranks)) == (Status.STOPPED, 14, 2)
    first, second = seen.ranks
    assert [line[:16] for line in first.stdout.splitlines()] == [
        "rank 0, epoch 0:",
        "rank 0, epoch 1:",
    ]
    assert second.stdout.startswith("rank 1, epoch 0:")
    assert first.losses != second.losses  # each has its share
    ours, theirs = first.snapshot(0), second.snapshot(0)
    assert ours is not None
    assert theirs is not None
    assert ours.hashes == theirs.hashes
    assert [one.path for one in seen.checkpoints] == ["model.pt", "model.pt"]
    assert seen.epoch_rounds == 14
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
def test_so_are_forked_ones(tmp_path: Path) -> None:
    seen = observed(written(tmp_path, FORK), tmp_path / "run")
    assert (seen.status, seen.rounds, len(seen.ranks)) == (Status.STOPPED, 14, 2)


@pytest.mark.slow
def test_the_script_goes_on_when_they_end_by_themselves(tmp_path: Path) -> None:
    seen = observed(written(tmp_path), tmp_path / "run", "--epochs", "1")
    assert (seen.status, seen.rounds) == (Status.COMPLETED, 6)
    assert seen.stdout.splitlines()[-1] == "all done"


@pytest.mark.slow
def test_they_are_timed(tmp_path: Path) -> None:
    seen = observed(written(tmp_path), tmp_path / "run", mode=Mode.TIME)
    assert (seen.status, len(seen.timing.round_seconds)) == (Status.STOPPED, 13)


@pytest.mark.slow
def test_one_that_fails_is_told_with_its_traceback(tmp_path: Path) -> None:
    script = written(tmp_path)
    failing = 'if rank == 1 and epoch == 1: raise ValueError("odd")\n        net.eval()'
    script.write_text(script.read_text().replace("net.eval()", failing))
    seen = observed(script, tmp_path / "run")
    assert (seen.status, seen.failed_rank) == (Status.FAILED, 1)
    assert "ValueError: odd" in (seen.traceback or "")


@pytest.mark.slow
def test_a_second_group_of_processes_goes_unobserved_and_is_told(tmp_path: Path) -> None:
    script = written(tmp_path, f"{SPAWN}\n    os.remove(meeting)\n    {SPAWN}")
    seen = observed(script, tmp_path / "run", "--epochs", "1")
    assert "another process that became rank0, after the first" in seen.unobserved


ALONE = """\
import sys
from multiprocessing import get_context

import torch


def fit(seed):
    torch.manual_seed(seed)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return [round(weight, 4) for weight in net.weight[0].tolist()]


if __name__ == "__main__":
    with get_context(sys.argv[1]).Pool(2) as pool:
        print(pool.map(fit, range(3)))
    if "too" in sys.argv:
        print(fit(3))
"""
ELSEWHERE = "the steps of processes that the script starts and that join no process group"


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_that_train_without_a_group_are_left_to_themselves(
    tmp_path: Path, warm_python: Path, start: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(ALONE)
    plain = subprocess.run(
        [sys.executable, script, start, "too"], capture_output=True, text=True, check=True
    )
    settings = RunSettings(warm_python, tmp_path, steps=3, timeout_s=120.0, env=ENVIRONMENT)
    seen = run(ScriptVersion(script, args=(start, "too")), settings, tmp_path / "run")
    assert (seen.status, seen.rounds, len(seen.steps)) == (Status.STOPPED, 3, 3)
    assert seen.stdout == plain.stdout.splitlines(keepends=True)[0]
    assert seen.unobserved == (ELSEWHERE,)
    with pytest.raises(TorchoptError, match=f"nothing to compare: {ELSEWHERE} are not observed"):
        verify(
            ScriptVersion(script, args=(start,)),
            ScriptVersion(script, args=(start,)),
            VerifySettings(warm_python, tmp_path, steps=3, env=ENVIRONMENT, measure_speed=False),
        )


def verdict_on(folder: Path, old: str, new: str) -> VerificationReport:
    original, changed = written(folder), written(folder, name="changed.py")
    assert old in changed.read_text()
    changed.write_text(changed.read_text().replace(old, new))
    settings = VerifySettings(
        Path(sys.executable), folder, steps=14, env=ENVIRONMENT, measure_speed=False
    )
    return verify(ScriptVersion(original), ScriptVersion(changed), settings)


@pytest.mark.slow
def test_a_careful_rewrite_passes_on_every_rank(tmp_path: Path) -> None:
    report = verdict_on(tmp_path, "momentum=0.9)", "momentum=0.9, foreach=True)")
    assert report.verdict is not None
    assert report.verdict.outcome is Outcome.EQUIVALENT, report.verdict.reason
    assert report.verdict.reason.endswith("on each of 2 ranks")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("set_epoch(epoch)", "set_epoch(epoch if rank == 0 else 0)", "rank 1: sample-order"),
        ("if rank == 0:", "if rank == 1:", "checkpoint"),
        ("net = DistributedDataParallel(net)\n", "\n", "rank 0: "),
        ("nprocs=2", "nprocs=1", "trains in 1 process, the original in 2"),
    ],
    ids=["order of one rank", "another rank saves", "nothing reduced", "one process less"],
)
def test_a_mistake_on_any_rank_is_caught(tmp_path: Path, old: str, new: str, reason: str) -> None:
    if "nprocs" in old:
        old, new = "(2, args.epochs, meeting), nprocs=2", "(1, args.epochs, meeting), nprocs=1"
    report = verdict_on(tmp_path, old, new)
    assert report.verdict is not None
    assert report.verdict.outcome is Outcome.NOT_EQUIVALENT
    assert reason in report.verdict.reason
