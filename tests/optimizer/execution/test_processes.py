"""Processes are bounded in time and output, and leave nothing behind."""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution import processes
from torchopt_cli.optimizer.execution.limits import Limits
from torchopt_cli.optimizer.execution.processes import run_bounded


@pytest.fixture
def python(tmp_path: Path):
    """Run a Python text, bounded."""

    def go(text: str, **limits: float):
        mark = uuid.uuid4().hex
        return run_bounded(
            [sys.executable, "-c", text],
            cwd=tmp_path,
            env={**os.environ, "TEST_MARK": mark},
            mark=f"TEST_MARK={mark}",
            limits=Limits(**{"seconds": 30.0, **limits}),
        )

    return go


def test_output_and_status(python):
    finished = python(
        "import sys; print('out'); print('err', file=sys.stderr); print(repr(sys.stdin.read())); sys.exit(7)"
    )
    assert (finished.returncode, finished.exceeded) == (7, None)
    assert (finished.stdout, finished.stderr) == ("out\n''\n", "err\n")
    assert not finished.stdout_cut


def test_output_is_kept_up_to_a_bound(python, monkeypatch):
    monkeypatch.setattr(processes, "KEPT_BYTES", 1000)
    finished = python("import sys; sys.stdout.write('x' * 300000); sys.stderr.write('y' * 1000)")
    assert (len(finished.stdout), finished.stdout_cut) == (1000, True)
    assert (len(finished.stderr), finished.stderr_cut) == (1000, False)
    assert finished.returncode == 0


# A child in the group, one that ignores SIGTERM, one in a session of its own.
CHILDREN = """
import os, signal, subprocess, sys, time
wait = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.{}); print(1, flush=True); time.sleep(100)"]
def child(handler, **options):
    command = [part.format(handler) for part in wait]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, **options)
    process.stdout.readline()
    return process.pid
print(child("SIG_DFL"), child("SIG_IGN"), child("SIG_DFL", start_new_session=True), flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "ending", ["time.sleep(100)", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_no_descendant_is_left(python, monkeypatch, alive, ending):
    started = time.monotonic()
    finished = python(CHILDREN + ending, seconds=2.0 if "sleep" in ending else 30.0)
    assert (finished.exceeded is not None) == ("sleep" in ending)
    assert time.monotonic() - started < 20
    pids = [int(pid) for pid in finished.stdout.split()]
    assert len(pids) == 3
    assert not any(alive(pid) for pid in pids)


def test_a_signal_shows_in_the_status(python):
    assert python("import os; os.kill(os.getpid(), 11)").returncode == -11
