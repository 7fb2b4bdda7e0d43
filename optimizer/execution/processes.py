"""Run a process with bounds on what it takes, and leave nothing of it behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from . import supervisor
from .limits import Bound, Exceeded, Limits

KEPT_BYTES = 8 << 20
"""How much of each output stream is kept."""
PATIENCE_SECONDS = 60.0
"""How long after its time limit a run's supervisor may take to answer."""


@dataclass(frozen=True)
class Finished:
    """How a process ended: ``returncode`` as subprocess has it, and the beginning of what it wrote.

    ``exceeded`` is None when it ended by itself.
    """

    returncode: int
    exceeded: Exceeded | None
    stdout: str
    stderr: str
    stdout_cut: bool
    stderr_cut: bool


class _Drain(threading.Thread):
    """Reads a stream to its end and keeps the first :data:`KEPT_BYTES`; calls ``flooded`` at more than ``limit``."""

    def __init__(self, stream: IO[bytes], limit: int, control: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream, self._limit, self._control = stream, limit, control
        self._kept = bytearray()
        self._total = 0
        self.start()

    def run(self) -> None:
        with self._stream, suppress(OSError, ValueError):
            while chunk := os.read(self._stream.fileno(), 1 << 20):
                self._kept += chunk[: KEPT_BYTES - len(self._kept)]
                before, self._total = self._total, self._total + len(chunk)
                if before <= self._limit < self._total:
                    self._control.write(Bound.OUTPUT.value.encode())

    @property
    def cut(self) -> bool:
        return self._total > len(self._kept)

    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")


def run_bounded(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    mark: str,
    limits: Limits,
    folders: Sequence[Path] = (),
    ended_by: int | None = None,
) -> Finished:
    """Run ``command`` in a session of its own; at its end, or beyond one of ``limits``, end all that it started.

    ``mark`` is a ``NAME=value`` for the environment that no other process has: should the run end its supervisor, it finds
    what is left. ``folders`` are those whose contents count for the limit on disk space. The run is also ended once the
    descriptor ``ended_by`` can be read from.
    """
    answer, told = os.pipe()
    spec = {
        "seconds": limits.seconds,
        "memory": limits.memory,
        "disk": limits.disk,
        "processes": limits.processes,
        "folders": [str(folder) for folder in folders],
        "answer": told,
        # The supervisor itself must not look like a process of the run.
        "environment": dict([mark.split("=", 1)]),
    }
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(spec), *command],
        cwd=cwd,
        env={name: value for name, value in env.items() if f"{name}={value}" != mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(told,),
        bufsize=0,
        start_new_session=True,
    )
    os.close(told)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    drains = [_Drain(s, limits.output, process.stdin) for s in (process.stdout, process.stderr)]
    answers: dict[str, Any] = {}
    try:
        answers = _answers(answer, limits.seconds + PATIENCE_SECONDS, ended_by)
    finally:
        os.close(answer)
        with suppress(OSError):
            process.stdin.close()  # which asks the supervisor to end what still runs
        with suppress(subprocess.TimeoutExpired):
            process.wait(supervisor.LAST_SECONDS)
        if process.returncode != 0:
            process.kill()
            process.wait()
            _end_marked(mark, answers.get("started"))
    for drain in drains:
        drain.join(supervisor.GRACE_SECONDS)
    return _finished(answers, limits, *drains)


def _answers(descriptor: int, seconds: float, ended_by: int | None) -> dict[str, Any]:
    """All that the supervisor says, in one mapping; what it has said until now when that takes too long."""
    deadline, said = time.monotonic() + seconds, bytearray()
    watched = [descriptor] if ended_by is None else [descriptor, ended_by]
    while (left := deadline - time.monotonic()) > 0:
        if descriptor not in select.select(watched, [], [], left)[0]:
            break
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            break
        said += chunk
    answers: dict[str, Any] = {}
    for line in said.splitlines():
        answers |= json.loads(line)
    return answers


def _finished(
    answers: Mapping[str, Any], limits: Limits, stdout: _Drain, stderr: _Drain
) -> Finished:
    if "unstartable" in answers:
        raise OSError(answers["unstartable"])
    exceeded = None
    if "returncode" not in answers:
        exceeded = Exceeded(Bound.WATCH, "the run ends the process that watches it")
    elif answers["bound"] is not None:
        bound, message = Bound(answers["bound"]), answers["message"]
        if bound is Bound.OUTPUT:
            message = f"more than {limits.output >> 20} MiB printed"
        exceeded = Exceeded(bound, message)
    returncode = answers.get("returncode")
    return Finished(
        -signal.SIGKILL if returncode is None else returncode,
        exceeded,
        stdout.text(),
        stderr.text(),
        stdout.cut,
        stderr.cut,
    )


def _end_marked(mark: str, group: int | None) -> None:
    """End the run's process group, and the processes whose environment has ``mark``: no supervisor knows of others."""
    if group is not None:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + supervisor.LAST_SECONDS
    while (found := _marked(mark)) and time.monotonic() < deadline:
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _marked(mark: str) -> set[int]:
    """The live processes whose environment has ``mark``; systems without /proc show none."""
    wanted = mark.encode()
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
            if state != b"Z" and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found
