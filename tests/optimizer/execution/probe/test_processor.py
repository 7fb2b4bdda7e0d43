"""CPU time counts that of children, running or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.probe.processor import processor_seconds

COMPUTES = """
import time
while time.process_time() < 0.3:
    pass
print("done", flush=True)
input()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_children_count_while_they_run_and_afterwards() -> None:
    before = processor_seconds()
    assert before is not None
    child = subprocess.Popen(
        [sys.executable, "-c", COMPUTES], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"done\n"
    running = processor_seconds()
    child.communicate(b"\n")
    ended = processor_seconds()
    assert running is not None
    assert ended is not None
    assert running - before >= 0.25
    assert ended - before >= 0.25
