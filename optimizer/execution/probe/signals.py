"""Keep Python code of the run from signalling processes that are not the run's own.

Landlock does that for all code since Linux 6.12 (:mod:`.landlock`); this is for older kernels and other systems.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any


def restrict_signals(mark: str) -> None:
    """Have ``os.kill`` and ``os.killpg`` refuse processes outside of this session whose environment lacks ``mark``.

    ``mark`` is a ``NAME=value``. Descendants that left the session are known by it; a signal to "all processes" is
    refused.
    """
    wanted, here = os.fsencode(mark), os.getsid(0)

    def own(pid: int) -> bool:
        try:
            if os.getsid(pid) == here:
                return True
            with open(f"/proc/{pid}/environ", "rb") as environment:
                return wanted in environment.read().split(b"\0")
        except OSError:
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
