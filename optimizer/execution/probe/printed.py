"""When a run printed its lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .patches import Patches


class PrintedLines:
    """Counts the lines that go to ``sys.stdout``, by how many rounds have begun."""

    def __init__(self, rounds: Callable[[], int]) -> None:
        self._rounds = rounds
        self._ends: dict[int, int] = {}
        self._count = 0

    def install(self, patches: Patches) -> None:
        """Count from here on."""
        if sys.stdout is not None and hasattr(sys.stdout, "__dict__"):  # pyright: ignore[reportUnnecessaryComparison]
            patches.wrap(sys.stdout, "write", self._write)

    def finish(self) -> dict[str, Any]:
        """What the record says of them: rounds that had begun, and the lines ended by the time that the next one did."""
        return {"printed": list(self._ends.items())}

    def _write(self, original: Callable[[str], int]) -> Callable[[str], int]:
        def write(text: str) -> int:
            self._count += text.count("\n")
            self._ends[self._rounds()] = self._count
            return original(text)

        return write
