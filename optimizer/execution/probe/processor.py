"""What the script and its workers have computed so far."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_USER, _SYSTEM = 11, 12
"""Which fields of /proc/PID/stat, after the name of the program (https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html)."""


def processor_seconds() -> float | None:
    """CPU time of this process and its children, those that run included; None where those cannot be seen."""
    if not Path("/proc/self/task").exists():
        return None
    ended = os.times()
    own = time.process_time() + ended.children_user + ended.children_system
    return own + sum(map(_seconds, _children()))


def _children() -> Iterator[str]:
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            yield from Path(f"/proc/self/task/{thread}/children").read_text().split()


def _seconds(process: str) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / os.sysconf("SC_CLK_TCK")
