"""Refuse what would change a file of the user's: the last word on what Python code does.

Every way to open or remove a file from Python raises an audit event, whatever name the function was imported under
(https://docs.python.org/3/library/audit_events.html).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .mirror import Mirror

_readlink = os.readlink  # as it is before redirection
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_AUDITED = {
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.mkdir": 1,
    "os.link": 2,
    "os.truncate": 1,
}
"""The events besides ``open``, and how many of their first arguments are paths."""


class Audit:
    """An audit hook that lets write in the scratch area and the shared folders only.

    ``busy`` tells that this thread is arranging the mirror itself.
    """

    def __init__(self, mirror: Mirror, busy: Callable[[], bool]) -> None:
        self._mirror = mirror
        self._busy = busy

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & WRITE_FLAGS:
                self._refuse_outside(path)
        elif event in _AUDITED and not self._busy():
            for path in args[: _AUDITED[event]]:
                self._refuse_outside(path, of_entry=True)

    def _refuse_outside(self, path: Any, of_entry: bool = False) -> None:
        """Raise PermissionError where writing to ``path`` would change a file that is not the run's own."""
        if isinstance(path, int) or path is None:
            return
        full = os.path.join(os.getcwd(), os.fsdecode(path))
        folder, name = os.path.split(full)
        real = os.path.join(self._real(folder), name) if of_entry else self._real(full)
        if not any(real == own or real.startswith(own + "/") for own in self._mirror.shared):
            raise PermissionError(f"torchopt: a run may not write outside its scratch area: {real}")

    def _real(self, path: str) -> str:
        """``realpath`` that sees the mirror's own links, with the unredirected functions."""
        parts, real = [name for name in path.split("/") if name], "/"
        for _ in range(1000):
            if not parts:
                break
            name = parts.pop(0)
            if name in (".", ".."):
                real = os.path.dirname(real) if name == ".." else real
                continue
            step = os.path.join(real, name)
            try:
                target = _readlink(step)
            except OSError:
                real = step
                continue
            parts = [part for part in target.split("/") if part] + parts
            real = "/" if target.startswith("/") else real
        return real
