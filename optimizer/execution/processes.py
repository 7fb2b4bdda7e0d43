"""Run a process with bounds on its time and output, and leave nothing of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

KEPT_BYTES = 8 << 20
"""How much of each output stream is kept."""
GRACE_SECONDS = 2.0
"""Between asking processes to end and ending them."""


@dataclass(frozen=True)
class Finished:
    """How a process ended: ``returncode`` as subprocess has it, and the beginning of what it wrote."""

    returncode: int
    timed_out: bool
    stdout: str
    stderr: str
    stdout_cut: bool
    stderr_cut: bool


class _Drain(threading.Thread):
    """Reads a stream to its end and keeps the first :data:`KEPT_BYTES`."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._kept = bytearray()
        self.cut = False
        self.start()

    def run(self) -> None:
        with self._stream, suppress(OSError, ValueError):
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                room = KEPT_BYTES - len(self._kept)
                self._kept += chunk[:room]
                self.cut = self.cut or len(chunk) > room

    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")


def run_bounded(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], mark: str, timeout_s: float
) -> Finished:
    """Run ``command`` in a session of its own; at its end, or after ``timeout_s``, end all that it started.

    ``mark`` is a ``NAME=value`` of ``env`` that no other process has: it finds descendants that left the session.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = _Drain(process.stdout), _Drain(process.stderr)
    timed_out = False
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        _end_all(process, mark)
    for drain in (stdout, stderr):
        drain.join(GRACE_SECONDS)
    returncode = process.wait()
    return Finished(returncode, timed_out, stdout.text(), stderr.text(), stdout.cut, stderr.cut)


def _end_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """End the process, its group and its marked descendants: first asked, then made to."""
    deadline = time.monotonic() + GRACE_SECONDS
    _signal(process.pid, _remaining(process.pid, mark), signal.SIGTERM)
    while process.poll() is None or _remaining(process.pid, mark):
        if time.monotonic() > deadline:
            _signal(process.pid, _remaining(process.pid, mark), signal.SIGKILL)
        time.sleep(0.02)


def _signal(group: int, others: set[int], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in others:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _remaining(group: int, mark: str) -> set[int]:
    """The live processes of the group, and those whose environment has ``mark``.

    Systems without /proc show neither: there the group is signalled once and trusted.
    """
    wanted = mark.encode()
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # "pid (name) state parent group ...", and the name may hold anything.
            state, _, its_group = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:3]
            marked = wanted in (folder / "environ").read_bytes().split(b"\0")
            if state != b"Z" and (int(its_group) == group or marked):
                found.add(int(folder.name))
    return found
