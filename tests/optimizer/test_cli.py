from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

from torchopt_cli.optimizer import cli
from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.errors import ExitCode, TorchoptError

Capture = pytest.CaptureFixture[str]
SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    x, y = x.cuda(), y.cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def torchopt(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchopt_cli.optimizer.cli", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,  # pyright: ignore
    )


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"torchopt {version('torchopt-cli')}\n"


COMMANDS = {
    "rewrite": "PATH...",
    "verify": "ORIGINAL [REWRITTEN]",
    "tune": "SCRIPT",
    "profile": "SCRIPT",
    "gate": "[SCRIPT]...",
    "rules": "",
    "explain": "NAME",
}


@pytest.mark.parametrize(("command", "arguments"), COMMANDS.items())
def test_every_command_explains_itself(capsys: Capture, command: str, arguments: str) -> None:
    """In the user's words: no types of Python's, no flag twice."""
    assert main([command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"Usage: torchopt {command} [OPTIONS] {arguments}".rstrip()
    assert err == ""
    assert "list[" not in out
    assert "<str>" not in out
    assert " / " not in out
    assert max(len(line) for line in out.splitlines()) <= 93  # one option's choices are as long


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("re", {"rewrite"}),
        ("explain no", {"no-grad", "non-blocking"}),
        ("rewrite train.py --select tf32,auto", {"tf32,autocast"}),
        ("verify train.py --tier ", {"exact", "numeric", "semantic"}),
        ("verify train.py --nv", set()),
        ("rewrite tra", set()),  # the shell's own: files
    ],
)
def test_shells_complete_names_and_choices(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, typed: str, offered: set[str]
) -> None:
    monkeypatch.setenv("_TORCHOPT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"torchopt {typed}")
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ") + 1))
    with suppress(SystemExit):
        main([])
    assert set(capsys.readouterr().out.split()) == offered


def test_the_commands_are_told_whole(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "..." not in out.replace("[ARGS]...", "")
    assert all(f"\n  {command} " in out for command in COMMANDS)


@pytest.mark.parametrize("command", ["verify", "profile", "tune"])
def test_the_formats_of_rewrite_are_refused_elsewhere(capsys: Capture, command: str) -> None:
    assert main([command, "train.py", "--format", "sarif"]) == 2
    assert capsys.readouterr().err == "torchopt: --format: only rewrite reports as sarif\n"


def test_without_a_command_the_help_is_an_error(capsys: Capture) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: torchopt" in err


@pytest.mark.parametrize(
    "arguments",
    [["rewrit"], ["rewrite"], ["rewrite", "--nope", "x.py"], ["explain"], ["explain", "a", "b"]],
)
def test_usage_errors_are_one_line(capsys: Capture, arguments: list[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("torchopt: ")


def test_where_a_scripts_own_options_go_is_told(capsys: Capture) -> None:
    """Everybody leaves the -- out once; and of a command alone it would be wrong."""
    for command in ("verify", "rewrite", "profile", "tune", "gate"):
        assert main([command, "train.py", "--epochs", "1"]) == 2
        assert capsys.readouterr().err.endswith("; options of the script's own go behind --\n")
    for arguments in (["rules", "--epochs"], ["verify", "train.py", "--steps"]):
        assert main(arguments) == 2
        assert "behind --" not in capsys.readouterr().err


def test_a_script_in_the_place_of_a_command(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my train.py").touch()
    assert main(["my train.py"]) == 2
    assert capsys.readouterr().err.endswith("torchopt rewrite 'my train.py' --dry-run\n")
    assert main(["other.py"]) == 2
    assert capsys.readouterr().err == "torchopt: No such command 'other.py'.\n"


def test_the_scripts_arguments_are_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    from torchopt_cli.optimizer.commands import rewrite

    def run(paths: object, flags: object, script_arguments: object) -> int:
        seen.append((paths, script_arguments))
        return 0

    monkeypatch.setattr(rewrite, "_rewrite", run)
    arguments = ["--dry-run", "-x", "--", "--help", "a b", "", "--tier=?"]
    assert main(["rewrite", "train.py", "--check", "--", *arguments]) == 0
    assert seen == [([Path("train.py")], tuple(arguments))]


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (TorchoptError("is bad", Path("x.py"), 3, 4), 2, "x.py:3:4: is bad\n"),
        (TorchoptError("differs", exit_code=ExitCode.NOT_EQUIVALENT), 3, "torchopt: differs\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_stops_a_command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    raised: BaseException,
    status: int,
    message: str,
) -> None:
    assert run_raising(monkeypatch, raised) == status
    assert capsys.readouterr() == ("", message)


def test_our_own_faults_are_no_findings(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert run_raising(monkeypatch, KeyError("a fault")) == 2
    err = capsys.readouterr().err
    assert "KeyError: 'a fault'" in err
    assert err.endswith("torchopt: internal error, please report it with the lines above\n")


def run_raising(monkeypatch: pytest.MonkeyPatch, raised: BaseException) -> int:
    """The exit status of a command that raises ``raised``."""

    def action(_: tuple[str, ...]) -> int:
        raise raised

    monkeypatch.setattr(cli, "app", lambda *_, **__: action)
    return main(["rules"])


@pytest.mark.torch
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_ended_leaves_nothing_behind(tmp_path: Path, ending: signal.Signals) -> None:
    for name in ("train.py", "fast.py"):
        (tmp_path / name).write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "torchopt_cli.optimizer.cli", "verify", "train.py", "fast.py"]
    process = subprocess.Popen(
        [*command, "--python", sys.executable],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
        # The tests may run under nohup, which a command heeds, too.
        preexec_fn=lambda: signal.signal(ending, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while (
        not any(temporary.glob("torchopt-*/run*/scratch/spec.json")) and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert any(temporary.glob("torchopt-*/run*/scratch/spec.json"))
    process.send_signal(ending)
    assert process.wait(timeout=60) == 128 + ending
    assert list(temporary.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torchopt_cli.optimizer.cli", "rewrite", "--format", "json"]
    process = subprocess.Popen(
        [*command, "train.py", "--dry-run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=120) == 141


def test_a_dry_run_is_lean(tmp_path: Path) -> None:
    """Torch is never imported; neither is what only other commands, terminals or long lines need."""
    (tmp_path / "train.py").write_text(SCRIPT)
    program = (
        "import sys; from torchopt_cli.optimizer.cli import main;"
        "status = main(['rewrite', '--dry-run', '--amp', 'bf16', 'train.py']);"
        "heavy = {'torch', 'numpy', 'black', 'safetensors', 'rich', 'asyncio', 'pydantic'};"
        "print(status, sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout.startswith("--- a/train.py\n")
    assert result.stderr.splitlines()[-1] == "0 []"


def test_a_project_with_our_folder_names_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "transforms").mkdir()
    for name in ("optimizer.py", "transforms/__init__.py"):
        (tmp_path / name).write_text("raise ImportError('this is the user's own module')\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": "."}
    result = torchopt("rewrite", "--dry-run", "train.py", cwd=tmp_path, env=environment)
    assert (result.returncode, result.stderr.count("Traceback")) == (0, 0)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_what_stdout_cannot_hold_is_escaped(encoding: str) -> None:
    """Bytes in a file's name that are no text go out as they are."""
    program = (
        "import sys; from torchopt_cli.optimizer.cli import main; sys.argv[1:] = ['--version'];"
        r"main(); print('\udcff \ud800 \u00e9')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment)
    spelt = "é".encode(encoding, "backslashreplace")
    assert done.stdout.splitlines()[-1] == b"\xff \\ud800 " + spelt


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_outputs_are_no_error(closed: str, tmp_path: Path) -> None:
    program = "import sys; from torchopt_cli.optimizer.cli import main; sys.exit(main())"
    (tmp_path / "x.py").write_text("import torch\nwith torch.cuda.amp.autocast():\n    pass\n")
    shell = f'exec "{sys.executable}" -c "{program}" rewrite x.py --dry-run {closed}'
    done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert "internal error" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    program = "import sys; from torchopt_cli.optimizer.cli import main; sys.exit(main())"
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", program, "rules"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr == "torchopt: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("command", ["rewrite", "verify", "tune", "profile"])
def test_help_takes_back_an_option_that_the_command_has(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == ExitCode.OK
    told = capsys.readouterr().out
    named = told.rpartition(": --no-")[2].strip().rstrip(".")
    assert f"\n  --{named} " in told
    assert "\n  -h, --help " in told
