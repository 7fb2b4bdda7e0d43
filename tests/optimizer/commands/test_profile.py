from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.errors import ExitCode

pytestmark = pytest.mark.torch

Project = Callable[..., Path]
Capture = pytest.CaptureFixture[str]

TRAIN = """
import sys, time
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.randn(4)

slow()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in DataLoader(Slow(), batch_size=4):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
    if "--fail" in sys.argv:
        raise RuntimeError("as asked for")
"""


def test_the_bottleneck_is_named_first(
    project: Project, capsys: Capture, warm_python: Path
) -> None:
    folder = project({"train.py": TRAIN})
    command = ["profile", "train.py", "--steps", "12", "--python", str(warm_python)]
    assert main([*command, "--trace", "trace.json"]) == ExitCode.OK
    told = capsys.readouterr().out
    assert told.startswith("Bottleneck: waiting for data\n")
    assert "ms per step" in told
    assert "samples/s on cpu" in told
    assert "slow-to-fast" in told
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]


@pytest.mark.slow
def test_the_profile_file_chooses_the_workers(
    project: Project, capsys: Capture, warm_python: Path
) -> None:
    folder = project({"train.py": TRAIN})
    command = ["profile", "train.py", "--steps", "12", "--python", str(warm_python)]
    assert main([*command, "--format", "json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["bottleneck"] == "waiting for data"
    assert {part["phase"] for part in document["phases"]} >= {"data", "forward", "backward"}
    assert document["loader"]["workers"] == 0
    assert [one["transform"] for one in document["opportunities"]] == ["slow-to-fast"]
    profile = folder / "profile.json"
    profile.write_text(json.dumps(document))
    assert main(["rewrite", "train.py", "--dry-run", "--profile", "profile.json"]) == ExitCode.OK
    profile.write_text("[]")
    assert main(["rewrite", "train.py", "--dry-run", "--profile", "profile.json"]) == ExitCode.USAGE
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "profile.json: is no profile that `torchopt profile --format json` wrote"


def test_a_script_that_fails_by_itself(
    project: Project, capsys: Capture, warm_python: Path
) -> None:
    project({"train.py": TRAIN})
    command = ["profile", "train.py", "--python", str(warm_python), "--", "--fail"]
    assert main(command) == ExitCode.SCRIPT_FAILED
    told = capsys.readouterr().err
    assert "RuntimeError: as asked for" in told
    assert told.splitlines()[-1] == "train.py: fails by itself"


@pytest.mark.parametrize(
    ("trace", "why"), [("none/trace.json", "No such file or directory"), (".", "Is a directory")]
)
def test_a_trace_that_cannot_be_written_is_refused_before_the_runs(
    project: Project, capsys: Capture, trace: str, why: str
) -> None:
    project({"train.py": "raise RuntimeError\n"})
    assert main(["profile", "train.py", "--trace", trace]) == ExitCode.USAGE
    assert capsys.readouterr().err == f"{trace}: cannot be written: {why}\n"


@pytest.mark.slow
def test_too_few_steps_to_profile(project: Project, capsys: Capture, warm_python: Path) -> None:
    project({"train.py": TRAIN.replace("return 48", "return 8")})
    assert main(["profile", "train.py", "--python", str(warm_python)]) == ExitCode.USAGE
    expected = "train.py: only 2 optimizer steps to profile, 10 are needed\n"
    assert capsys.readouterr().err == expected
