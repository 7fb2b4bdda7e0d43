"""The end of a run: the script is unwound from the next of our hooks that it meets."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .rounds import StopRun

_PATIENCE = 20
"""How often a script may swallow the end of its run before the process is ended."""
_PATIENCE_SECONDS = 30.0
"""How long a script may go on after the end of its run without meeting one of our hooks again."""


class Ending:
    """Ends a run that is over; calls ``give_up`` for a script that goes on, at once where it is not to be unwound."""

    def __init__(self, give_up: Callable[[], None], *, unwinds: bool) -> None:
        self._give_up = give_up
        self._left = _PATIENCE if unwinds else 0
        self._waiting: threading.Timer | None = None

    def unwind(self) -> None:
        """End the script here. Raises StopRun."""
        if self._waiting is None:
            self._waiting = threading.Timer(_PATIENCE_SECONDS, self._give_up)
            self._waiting.daemon = True
            self._waiting.start()
        if self._left <= 0:
            self._give_up()
        self._left -= 1
        raise StopRun

    def reached(self) -> None:
        """The script has ended."""
        if self._waiting is not None:
            self._waiting.cancel()
