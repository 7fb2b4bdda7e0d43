"""Keep Python code of the run from signalling processes that are not the run's own.

Landlock does that for all code since Linux 6.12 (:mod:`.landlock`); this is for older kernels and other systems.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any


def restrict_signals(mark: str) -> None:
    """Have ``os.kill`` and ``os.killpg`` refuse processes that are not the run's own, and "all processes".

    Its own are those of this session, their descendants, and whoever has ``mark`` (``NAME=value``) in its environment.
    """
    wanted, here = os.fsencode(mark), os.getsid(0)

    def own(pid: int) -> bool:
        try:
            while pid > 1:
                if os.getsid(pid) == here or wanted in _read(f"/proc/{pid}/environ").split(b"\0"):
                    return True
                pid = int(_read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])  # its parent
        except OSError:
            pass
        return False

    def guarded(function: Callable[..., Any], leader: Callable[[int], int]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(pid: int, number: int, /) -> Any:
            # 0 is the caller's group; signal 0 only asks whether the process is there.
            if number != 0 and pid != 0 and not own(leader(pid)):
                raise PermissionError(f"torchopt: a run may not signal other processes: {pid}")
            return function(pid, number)

        return wrapper

    os.kill = guarded(os.kill, lambda pid: pid if pid > 0 else -pid if pid < -1 else 1)
    os.killpg = guarded(os.killpg, lambda group: group)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
