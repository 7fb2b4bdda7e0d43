"""The one error a user sees, and the exit codes of every command."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """What a command's exit status means; the same for every command."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    NOT_EQUIVALENT = 3
    NOT_FAST_ENOUGH = 4
    SCRIPT_FAILED = 5


@dataclass
class TorchoptError(Exception):
    """Something the user can act on, told in one line: ``path:line:col: what is wrong``.

    ``line`` and ``column`` are 1-based; either may be None where the place is a whole file.
    """

    message: str
    path: Path | None = None
    line: int | None = None
    column: int | None = None
    exit_code: ExitCode = ExitCode.USAGE

    def __str__(self) -> str:
        place = [str(part) for part in (self.path, self.line, self.column) if part is not None]
        return ": ".join([":".join(place), self.message]) if place else self.message
