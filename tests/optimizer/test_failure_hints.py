from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.process import compare_process
from torchopt_cli.optimizer.execution.limits import Bound, Exceeded
from torchopt_cli.optimizer.execution.observations import Observations, Status, Timing
from torchopt_cli.optimizer.failure_hints import compiler_hint, device_hint, input_hint

USAGE = "usage: train.py [-h] --data DATA\ntrain.py: error: the following arguments are required: --data\n"


@pytest.mark.parametrize(
    ("details", "words"),
    [
        (USAGE, "behind --"),
        ("Usage: train.py [OPTIONS]\nError: Missing option '--data'.", "behind --"),
        ("Traceback\nNameError: name 'get_ipython' is not defined", "of the notebook"),
        ("Traceback\nEOFError: EOF when reading a line", "standard input"),
        ("Traceback\nModuleNotFoundError: No module named 'skimage'", "--python"),
        ("Traceback\nValueError: usage: none", ""),
    ],
)
def test_what_a_script_was_not_given(details: str, words: str) -> None:
    hint = input_hint(details, Path("train.py"))
    assert words in hint
    assert bool(hint) == bool(words)


@pytest.mark.parametrize(
    ("module", "code", "script"),
    [
        ("gcn", "gcn/utils.py", "gcn/train.py"),
        ("gpt.model", "gpt/model.py", "projects/adder/adder.py"),
        ("models", "models.py", "scripts/train.py"),
    ],
)
def test_a_module_that_lies_beside_the_script(
    module: str, code: str, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (code, script):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir((tmp_path / script).parent)
    hint = input_hint(
        f"Traceback\nModuleNotFoundError: No module named '{module}'", Path(Path(script).name)
    )
    folder = os.path.relpath(tmp_path)
    assert f"PYTHONPATH={min(folder, str(tmp_path), key=len)}" in hint
    assert "--python" not in hint


def test_a_missing_device() -> None:
    assert "--emulate-cuda" in device_hint("RuntimeError: No CUDA GPUs are available")
    assert not device_hint("ValueError: 3")


@pytest.mark.parametrize(
    "details",
    [
        "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        "cuda_utils.c:6:10: fatal error: Python.h: No such file or directory",
        "InductorError: CalledProcessError: Command '['/usr/bin/gcc', '/tmp/x/cuda_utils.c', '-O3']' returned non-zero exit status 1.",
        "TritonMissing: Cannot find a working triton installation.",
    ],
)
def test_a_missing_compiler(details: str) -> None:
    assert "--ignore compile" in compiler_hint(details)
    (finding,) = compare_process(failed(""), failed(details))
    assert "header files" in finding.message
    assert not compiler_hint("CalledProcessError: Command '['git', 'log']' returned 1")


def failed(stderr: str, **more: object) -> Observations:
    status = {"status": Status.FAILED, "exit_code": 2, "traceback": None, "rounds": 0} | more
    output = {"stdout": "", "stderr": stderr, "stdout_cut": False, "stderr_cut": False}
    rest = {"folder": Path(), "optimizer_seen": False, "timing": Timing(1.0)}
    return Observations(**output, **rest, **status)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rounds", "when"),
    [(0, "before the first step is complete"), (1, "after 1 step,"), (2, "after 2 steps,")],
)
def test_when_a_rewrite_fails_is_counted(rounds: int, when: str) -> None:
    (finding,) = compare_process(failed(""), failed("KeyError: 'x'", rounds=rounds))
    assert f"fails {when}" in finding.message


def test_a_script_that_exits_says_why_itself() -> None:
    run = failed(USAGE)
    told = f"{USAGE.splitlines()[-1]} (exit status 2)"
    assert run.ending == told
    assert run.failure_details == f"{USAGE.splitlines()[0]}\n{told}"
    assert failed("").failure_details == "exit status 2"
    exceeded = Exceeded(Bound.TIME, "8 s are over")
    late = failed("epoch 1\n", status=Status.TIMED_OUT, exceeded=exceeded)
    assert late.failure_details == "epoch 1\nover the time limit: 8 s are over"
