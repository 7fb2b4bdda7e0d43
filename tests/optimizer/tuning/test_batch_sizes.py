"""Batch sizes: written where the script says its own, compared by samples per second, taken only where that is allowed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.errors import ExitCode
from torchopt_cli.optimizer.execution.observations import Observations, Status, Timing
from torchopt_cli.optimizer.execution.recorded import LoaderPass
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion
from torchopt_cli.optimizer.options import Options
from torchopt_cli.optimizer.profiling.profile import StepProfile
from torchopt_cli.optimizer.tuning import tune as module
from torchopt_cli.optimizer.tuning.batch_sizes import for_as_many_samples, log_throughput_ratio
from torchopt_cli.optimizer.tuning.configurations import Configuration, Rewriter
from torchopt_cli.transforms import registry

SCRIPT = """\
import argparse
import torch
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()
loader = DataLoader(data, batch_size=args.batch_size)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
Capture = pytest.CaptureFixture[str]


def timing(*rounds: float) -> Timing:
    return Timing(9.0, 1.0, 0.5, rounds, (0.0,) * len(rounds))


def test_runs_read_as_many_samples() -> None:
    """Else one of them might evaluate in its rounds and the other not."""
    settings = RunSettings(Path("python"), Path(), steps=60, block_steps=4, device_block_steps=6)
    found = for_as_many_samples(settings, (32.0, 64.0))
    assert [one.device_block_steps for one in found] == [6, 3]
    assert [(one.steps, one.block_steps) for one in found] == [(60, 4), (30, 2)]
    found = for_as_many_samples(settings, (32.0, 256.0))
    assert [(one.steps, one.block_steps) for one in found] == [(240, 4), (30, 1)]


def test_last_batches_count_as_what_they_are() -> None:
    """Of 320 samples, a size of 256 makes two batches an epoch, one of which is short."""
    even, uneven = timing(*(0.32,) * 30), timing(*(0.26, 0.06) * 15)
    found = math.exp(log_throughput_ratio(even, uneven, (32.0, 160.0)))
    assert found == pytest.approx(10.0, rel=0.03)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "all_transforms", lambda: ())
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_the_size_is_written_where_the_script_says_it(train: Path) -> None:
    rewriter = Rewriter(train, (), Options())
    sizes = [Configuration(batch_size=size) for size in (64, 32)]
    (file,) = rewriter.rewrite(sizes[0]).changed
    assert SCRIPT.replace("default=32", "default=64") == file.text
    assert [rewriter.refusal(Configuration(), one) for one in sizes] == [
        None,
        "it makes no difference here",
    ]


@pytest.mark.parametrize("arguments", [("--batch-size", "16"), ("--batch-size=16",)])
def test_no_size_beside_one_on_the_command_line(train: Path, arguments: Sequence[str]) -> None:
    rewriter = Rewriter(train, (), Options(), arguments)
    reason = rewriter.refusal(Configuration(), Configuration(batch_size=64))
    assert reason is not None
    assert "is given on the command line" in reason


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Seconds of a round by batch size; a size that is not there fails."""
    seconds = {32: 0.1, 64: 0.15, 128: 0.4}
    runs = [0]

    def run(version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
        runs[0] += 1
        text = "".join(version.overrides.values())
        size = int(text.split("default=")[1].split(")")[0]) if text else 32
        once = seconds.get(size, 0.0) * (1 + 0.001 * (runs[0] % 3))
        seen = Observations(
            folder=folder,
            status=Status.STOPPED if size in seconds else Status.FAILED,
            exit_code=1,
            traceback="",
            stdout="",
            stderr="",
            stdout_cut=False,
            stderr_cut=False,
            rounds=30,
            optimizer_seen=True,
            timing=timing(*(once,) * 30),
        )
        if settings.mode is Mode.OBSERVE:
            seen = replace(seen, loader_passes=(LoaderPass(0, 0, 30, 30 * size, False),))
        return seen

    unknown = StepProfile(None, 50, 0.1, None, (), (), (), None, None, None, None, None)
    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "profile", lambda *_: unknown)
    return seconds


@pytest.mark.parametrize(
    ("more", "size"), [((), 32), (("--tier", "semantic"), 64), (("--dry-run",), 32)]
)
def test_more_samples_a_second_are_told_and_taken_only_where_asked(
    train: Path, machine: dict[int, float], capsys: Capture, more: tuple[str, ...], size: int
) -> None:
    assert main(["tune", "train.py", "--batch-sizes", "64,128,512", *more]) == ExitCode.OK
    assert train.read_text() == SCRIPT.replace("default=32", f"default={size}")
    printed = capsys.readouterr()
    told = printed.out + printed.err
    assert "A batch size of 64 makes 1.33x" in told
    assert "nothing verified that it learns as well" in told
    assert ("it is not written" in told) == (size == 32)


def test_the_document(train: Path, machine: dict[int, float], capsys: Capture) -> None:
    command = ["tune", "train.py", "--batch-sizes", "64,128,512,32", "--format", "json"]
    assert main(command) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["winner"] is None
    assert document["written"] is None
    assert [one["outcome"] for one in document["batch_sizes"]] == [
        "more samples a second",
        "not paying",
        "fails",
        "refused",
    ]
    assert document["batch_sizes"][0]["change"] == "batch size 64"


@pytest.mark.parametrize("sizes", ["64,many", "0", "64,,128"])
def test_sizes_that_are_none(train: Path, capsys: Capture, sizes: str) -> None:
    assert main(["tune", "train.py", "--batch-sizes", sizes]) == ExitCode.USAGE
    assert "--batch-sizes: " in capsys.readouterr().err
