"""Asks the user about every change before it is made, as ``git add -p`` does."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ..source import Sources
from ..terminal import Paint, display_path
from .result import AppliedChange

_HELP = """\
y - make this change
n - leave this place alone
q - leave this place and all that follow alone
? - say what the answers mean
"""
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


class Questions:
    """Asks on ``output`` and reads the answers from ``answers``; their end means ``q``.

    A change is asked about once, however often it is planned.
    """

    def __init__(self, answers: TextIO, output: TextIO, paint: Paint) -> None:
        self._answers = answers
        self._output = output
        self._paint = paint
        self._decided: dict[tuple[str, Path, int, str], bool] = {}
        self._over = False

    def wanted(self, change: AppliedChange, sources: Sources, texts: Mapping[Path, str]) -> bool:
        """Whether the user wants ``change``, which gives the files in ``texts`` new text."""
        key = (change.transform, change.path, change.line, change.message)
        if key not in self._decided:
            self._decided[key] = not self._over and self._ask(change, sources, texts)
        return self._decided[key]

    def _ask(self, change: AppliedChange, sources: Sources, texts: Mapping[Path, str]) -> bool:
        for path, text in texts.items():
            before = sources.read(path).text if sources.exists(path) else ""
            self._show(display_path(path), before, text)
        place = f"{display_path(change.path)}:{change.line}"
        self._say(
            f"{place} {change.transform} [{change.tier.label}] {change.message}; {change.reason}\n"
        )
        while True:
            self._say(self._paint("Make this change [y,n,q,?]? ", "bold"))
            self._output.flush()
            line = self._answers.readline()
            answer = line.strip().lower()
            if answer in {"y", "n"}:
                return answer == "y"
            if answer == "q" or not line:
                self._over = True
                return False
            self._say(_HELP)

    def _show(self, label: str, before: str, after: str) -> None:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        for line in difflib.unified_diff(old, new, f"a/{label}", f"b/{label}"):
            is_heading = line.startswith(("+++", "---"))
            self._say(self._paint(line, "bold" if is_heading else _COLOURS.get(line[0], "")))
            if not line.endswith("\n"):
                self._say("\n\\ No newline at end of file\n")

    def _say(self, text: str) -> None:
        self._output.write(text)
