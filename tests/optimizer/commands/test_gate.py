"""The gate as a workflow runs it: in a repository with a history, with the commands of docs/gate-workflow.yml."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from torchopt_cli.optimizer import gpus
from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.errors import ExitCode
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.gate import jobs
from torchopt_cli.optimizer.gate.judge import Gated, Job, Judgement, Limits

ROOT = Path(__file__).parents[3]
Capture = pytest.CaptureFixture[str]
Commit = Callable[[str, str], None]

TRAIN = """\
import sys

import torch
from data import load

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in load():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
if "--fail" in sys.argv:
    raise RuntimeError("as asked for")
"""
DATA = "import torch\n\n\ndef load():\n    return torch.randn(12, 8, 4)\n"
CONFIGURATION = """\
[tool.torchopt.gate]
device = "cpu"
steps = 8

[[tool.torchopt.gate.scripts]]
script = "train.py"
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, "-C", str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a commit on main, and a branch that is checked out."""
    for variable in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, text in {"train.py": TRAIN, "data.py": DATA, "pyproject.toml": CONFIGURATION}.items():
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "checkout", "-qb", "change")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Judge:
    """Stands in for the judge: every job comes to ``gated``."""

    def __init__(self) -> None:
        self.gated = Gated.PASSED
        self.asked: list[Job] = []

    def __call__(self, job: Job, limits: Limits, progress: Callable[[str], None]) -> Judgement:
        progress("runs")
        self.asked.append(job)
        return Judgement(job, self.gated, "as told")


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judge:
    judge = Judge()
    monkeypatch.setattr(jobs, "judge", judge)
    monkeypatch.setattr(gpus, "visible_gpus", lambda _: ())
    return judge


@pytest.mark.parametrize("text", [None, "x = ("])
def test_scripts_are_looked_at_before_torch_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
) -> None:
    """An interpreter without torch hides neither a missing script nor a missing setting."""

    def no_torch(python: Path) -> tuple[str, ...]:
        raise AssertionError("asked for GPUs")

    monkeypatch.setattr(gpus, "visible_gpus", no_torch)
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "train.py").write_text(text)
    for command in (["gate", "train.py", "--base", "HEAD"], ["tune", "train.py"]):
        assert main(command) == ExitCode.USAGE
        said = capsys.readouterr().err
        assert said.startswith("train.py:1:5: syntax error" if text else "train.py: no such file")
    assert main(["gate"]) == ExitCode.USAGE
    assert "nothing to gate" in capsys.readouterr().err


def test_a_link_to_itself_is_told_like_every_unreadable_script(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "loop.py").symlink_to("loop.py")
    assert main(["gate", "loop.py", "--base", "main"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert (said.startswith("loop.py: cannot be read"), said.count("\n")) == (True, 1)


def workflow_commands() -> list[str]:
    """What docs/gate-workflow.yml and action.yml run of ours."""
    texts = [(ROOT / name).read_text() for name in ("docs/gate-workflow.yml", "action.yml")]
    found = [c for text in texts for c in re.findall(r"run: (torchopt .*)", text)]
    assert len(found) == 2
    return found


@pytest.mark.parametrize("command", workflow_commands())
def test_the_commands_of_the_workflow_are_ours(
    repository: Path, judged: Judge, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """As a shell would expand them, with the variables the workflow sets; the scripts get what is theirs alone."""
    arguments = "train.py --device cpu -- --epochs 1"
    variables = {"BASE": "main", "ARGUMENTS": arguments, "JUNIT": "torchopt.xml"}
    script = f'printf "%s\\0" {command.removeprefix("torchopt ")}'
    shell = subprocess.run(
        ["bash", "-c", script], env={**os.environ, **variables}, capture_output=True, check=True
    )
    assert main(shell.stdout.decode().split("\0")[:-1]) == ExitCode.OK
    (job,) = judged.asked
    assert job.name == "train.py against main"
    assert job.after.args == (("--epochs", "1") if "$ARGUMENTS" in command else ())
    assert ElementTree.parse(repository / "torchopt.xml").getroot().tag == "testsuites"


def test_the_base_has_the_texts_of_the_commit(repository: Path, judged: Judge) -> None:
    (repository / "data.py").write_text(DATA.replace("12, 8", "12, 16"))
    assert main(["gate", "--base", "main", "--", "--epochs", "1"]) == ExitCode.OK
    (job,) = judged.asked
    assert job.before.overrides == {repository / "data.py": DATA}
    assert job.after.overrides == {}
    assert job.before.args == job.after.args == ("--epochs", "1")
    assert (job.minimum, job.expected, job.steps) == (0.95, 1.0, 8)
    assert job.env == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_rewrite_is_compared_with_its_original(repository: Path, judged: Judge) -> None:
    (repository / "fast.py").write_text(TRAIN)
    command = ["gate", "fast.py", "--original", "train.py", "--minimum-speedup", "1.3"]
    assert main(command) == ExitCode.OK
    (job,) = judged.asked
    assert job.before.entry == job.after.entry == repository / "train.py"
    assert job.after.brought_by == repository / "fast.py"
    assert (job.minimum, job.expected) == (1.3, None)


def test_reports_are_written_and_github_is_told(
    repository: Path, judged: Judge, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    judged.gated = Gated.TOO_SLOW
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(repository / "step.md"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (repository / "step.md").write_text("before\n")
    assert main(["gate", "--base", "main", "--summary", "out/gate.md"]) == ExitCode.NOT_FAST_ENOUGH
    summary = (repository / "out/gate.md").read_text()
    assert summary.startswith("### torchopt gate\n")
    assert (repository / "step.md").read_text() == "before\n" + summary
    printed = capsys.readouterr().out
    assert "train.py against main: not fast enough: as told\n" in printed
    assert "::error file=train.py,title=torchopt gate (not fast enough)::as told\n" in printed


def test_a_configured_script_that_is_not_there_is_told_with_its_place(
    repository: Path, judged: Judge, capsys: Capture
) -> None:
    configured = CONFIGURATION.replace("train.py", "gone.py")
    (repository / "pyproject.toml").write_text(configured)
    assert main(["gate", "--base", "main"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "pyproject.toml:5:1: gone.py: no such file\n"


def test_a_summary_that_github_does_not_take_is_a_note(
    repository: Path, judged: Judge, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(repository))
    assert main(["gate", "--base", "main"]) == ExitCode.OK
    assert "note: GITHUB_STEP_SUMMARY: " in capsys.readouterr().err


def test_files_that_cannot_stand_in_are_told(
    repository: Path, judged: Judge, capsys: Capture
) -> None:
    for data in (b"\xff\x00", b"\xff\x01"):
        (repository / "weights.bin").write_bytes(data)
        git(repository, "add", "-A")
        git(repository, "commit", "-qm", "weights")
    assert main(["gate", "--base", "HEAD~1"]) == ExitCode.OK
    assert "note: weights.bin: not as in HEAD~1, and no text: both versions read what is there" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--base", "nowhere"], "torchopt: --base: no such commit here: nowhere"),
        (["train.py"], "train.py: nothing to compare with: name its original (--original), or a"),
        (
            ["--original", "train.py"],
            "torchopt: --original: takes one SCRIPT, which is its rewrite",
        ),
        (["gone.py", "--base", "main"], "gone.py: "),
        (
            ["train.py", "--original", "./train.py"],
            "train.py: is its own original: there is nothing",
        ),
        (
            ["train.py", "--original", "data.py", "--base", "main"],
            "torchopt: --original: compares with that file, not with a commit",
        ),
        (["--base", "main", "--junit", "."], ".: cannot be written: Is a directory"),
        (["--base", "main", "--summary", "train.py/x"], "train.py/x: cannot be written: "),
        (["--minimum-speedup", "x"], "torchopt: --minimum-speedup: 'x' is not a factor above 0"),
    ],
)
def test_bad_usage_is_one_line(
    repository: Path, judged: Judge, capsys: Capture, arguments: Sequence[str], told: str
) -> None:
    assert main(["gate", *arguments]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith(told)
    assert error.count("\n") == 1
    assert judged.asked == []


def test_cuda_is_emulated_where_a_gpu_is_wanted_and_there_is_none(
    repository: Path, judged: Judge
) -> None:
    def emulated(*arguments: str) -> bool:
        judged.asked.clear()
        assert main(["gate", "--base", "main", *arguments]) == ExitCode.OK
        return judged.asked[0].emulated

    assert not emulated("--device", "cpu")
    assert not emulated("--device", "auto")
    assert emulated("--device", "cuda")
    (repository / "data.py").write_text(DATA.replace("12, 8, 4", "12, 8, 4, device='cuda'"))
    assert emulated("--device", "auto")


@pytest.mark.parametrize(
    ("file", "named", "emulated"),
    [
        (".venv/lib/python3.12/site-packages/torch/cuda/__init__.py", False, False),
        ("tools/on_a_gpu.py", False, False),
        ("tools/on_a_gpu.py", True, True),
        ("env/lib/python3.12/site-packages/torch/cuda/__init__.py", True, False),
    ],
)
def test_the_cuda_of_files_that_a_script_does_not_use_is_not_emulated(
    repository: Path, judged: Judge, file: str, named: bool, emulated: bool
) -> None:
    """Nor that of the torch in an environment beside it, whatever the script imports by a name that it makes."""
    (repository / file).parent.mkdir(parents=True)
    (repository / file).write_text("device = 'cuda'\n")
    (repository / "env").mkdir(exist_ok=True)
    (repository / "env" / "pyvenv.cfg").touch()
    if named:
        text = TRAIN.replace("import sys\n", "import importlib\nimport sys\n")
        (repository / "train.py").write_text(text)
    assert main(["gate", "--base", "main", "--device", "auto"]) == ExitCode.OK
    assert [job.emulated for job in judged.asked] == [emulated]


def test_jobs_queue_over_the_gpus(
    repository: Path, judged: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "visible_gpus", lambda _: ("3", "5"))
    for number in range(5):
        (repository / f"train{number}.py").write_text(TRAIN)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "more")
    scripts = [f"train{number}.py" for number in range(5)]
    assert main(["gate", *scripts, "--base", "HEAD", "--device", "cuda"]) == ExitCode.OK
    assert sorted(job.name for job in judged.asked) == [f"{s} against HEAD" for s in scripts]
    assert {job.env["CUDA_VISIBLE_DEVICES"] for job in judged.asked} <= {"3", "5"}
    assert not any(job.emulated for job in judged.asked)


@pytest.mark.parametrize(("processes", "gpus_there"), [(2, 3), (4, 3)])
def test_each_process_of_a_job_has_a_gpu(
    monkeypatch: pytest.MonkeyPatch, processes: int, gpus_there: int
) -> None:
    held: set[str] = set()

    def judge(job: Job, *_: object) -> str:
        mine = job.env["CUDA_VISIBLE_DEVICES"].split(",")
        assert len(mine) == min(job.after.processes or 1, gpus_there)
        assert held.isdisjoint(mine)
        held.update(mine)
        time.sleep(0.01)
        held.difference_update(mine)
        return job.name

    def job(number: int) -> Job:
        version = ScriptVersion(Path("train.py"), processes=processes if number % 2 else None)
        return Job(str(number), version, version, None, 1.0, 1.0, 20)

    monkeypatch.setattr(jobs, "judge", judge)
    limits = Limits(Path(sys.executable), Path())
    names = tuple(f"GPU-{number}" for number in range(gpus_there))
    asked = [job(number) for number in range(12)]
    done = jobs.judge_all(asked, limits, names, lambda *_: None)
    assert done == [str(number) for number in range(12)]


@pytest.mark.torch
@pytest.mark.slow
def test_a_change_of_training_is_caught_and_the_base_that_fails_told(
    repository: Path, capsys: Capture
) -> None:
    (repository / "train.py").write_text(TRAIN.replace("lr=0.1", "lr=0.11"))
    python = ["--python", sys.executable]
    assert main(["gate", "--base", "main", *python]) == ExitCode.NOT_EQUIVALENT
    assert "learning-rate" in capsys.readouterr().out
    assert main(["gate", "--base", "main", *python, "--steps", "50", "--", "--fail"]) == (
        ExitCode.SCRIPT_FAILED
    )
    assert "RuntimeError: as asked for" in capsys.readouterr().out


@pytest.mark.torch
@pytest.mark.slow
def test_a_script_for_a_gpu_is_gated_without_one(repository: Path, capsys: Capture) -> None:
    text = TRAIN.replace("Linear(4, 1)", "Linear(4, 1).cuda()").replace(
        "model(x)", "model(x.cuda())"
    )
    (repository / "train.py").write_text(text)
    git(repository, "commit", "-qam", "for a GPU")
    (repository / "train.py").write_text(text.replace("x.cuda()", "x.to('cuda')"))
    command = ["gate", "--base", "HEAD", "--device", "cuda", "--python", sys.executable]
    assert main(command) == ExitCode.OK
    assert "speed was not gated: there is no GPU, CUDA was emulated" in capsys.readouterr().out
    (repository / "train.py").write_text(text.replace("model(x.cuda())", "model(x)"))
    assert main(command) == ExitCode.NOT_EQUIVALENT
    assert "same device" in capsys.readouterr().out
