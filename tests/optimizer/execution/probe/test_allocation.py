"""Freed memory stays with the process: told by the pages that the kernel has to give it again."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping

import pytest

from torchopt_cli.optimizer.execution.probe import allocation

PROGRAM = """
import importlib.util, resource, sys
spec = importlib.util.spec_from_file_location("allocation", sys.argv[1])
allocation = importlib.util.module_from_spec(spec)
spec.loader.exec_module(allocation)
if sys.argv[2] == "kept":
    allocation.keep_freed_memory()
def step():
    blocks = [b"x" * ((1 << 20) + n) for n in range(12)]
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, environment: Mapping[str, str]) -> int:
    command = [sys.executable, "-IS", "-c", PROGRAM, allocation.__file__, how]
    done = subprocess.run(command, env=dict(environment), capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's allocator")
def test_freed_memory_is_kept_unless_the_user_says_otherwise() -> None:
    usual = faults("as it is", {})
    assert faults("kept", {}) < usual / 5
    assert faults("kept", {"MALLOC_TRIM_THRESHOLD_": "131072"}) > usual / 5


def test_another_allocator_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation.ctypes, "CDLL", lambda _: object())
    allocation.keep_freed_memory()
