"""What the tests of rewriting share: spans by the text that stands there, and edits carried out on a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.rewriting.apply import apply_edits
from torchopt_cli.optimizer.rewriting.edits import Edit, Span
from torchopt_cli.optimizer.rewriting.style import Style
from torchopt_cli.optimizer.source import SourceFile


@pytest.fixture
def span() -> Callable[..., Span]:
    """The span of the ``nth`` (from 0) occurrence of ``fragment`` in ``text``."""

    def find(text: str, fragment: str, nth: int = 0) -> Span:
        start = -1
        for _ in range(nth + 1):
            start = text.index(fragment, start + 1)

        def place(offset: int) -> tuple[int, int]:
            rows = text[:offset].replace("\r\n", "\n").replace("\r", "\n").split("\n")
            return len(rows), len(rows[-1])

        return Span(*place(start), *place(start + len(fragment)))

    return find


@pytest.fixture
def rewritten() -> Callable[..., str]:
    """The text after some edits."""

    def rewrite(text: str, *edits: Edit, style: Style | None = None) -> str:
        return apply_edits(SourceFile(Path("/nowhere/train.py"), text), edits, style)

    return rewrite


@pytest.fixture
def check(rewritten: Callable[..., str]) -> Callable[..., None]:
    """Asserts what edits make of a (dedented) text; ``edits`` is a function from the text to them."""

    def compare(before: str, after: str, edits: Callable[[str], list[Edit]]) -> None:
        before, after = dedent(before).lstrip("\n"), dedent(after).lstrip("\n")
        assert rewritten(before, *edits(before)) == after

    return compare
