"""How a file is laid out, so that what is written into it looks like what is there."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ..syntax_tree import walk
from .lines import width
from .source_tree import SourceTree, blocks_of

_DEFAULT_INDENT = " " * 4
_BLACK_LINE_LENGTH = 88
_LONGEST_INFERRED = 120


@dataclass(frozen=True)
class Style:
    """``indent`` is one level of indentation, ``newline`` ends a new line, ``line_length`` is in columns.

    ``is_bounded`` is false where no formatter keeps the lines short: they go beyond black's length. ``aligns`` is set where
    arguments that need several lines stand under each other, behind the bracket, rather than below it.
    """

    indent: str = _DEFAULT_INDENT
    newline: str = "\n"
    line_length: int = _BLACK_LINE_LENGTH
    is_bounded: bool = True
    aligns: bool = False

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, path: Path, source: SourceTree) -> Style:
        """The style of the file at ``path``, and of its project where that limits the lines."""
        configured = _configured_line_length(path)
        length = configured or _longest_line(source)
        is_bounded = configured is not None or length <= _BLACK_LINE_LENGTH
        indent = _indent(source)
        aligns = "\t" not in indent and _aligns(source)
        return cls(indent, _newline(source.lines), length, is_bounded, aligns)

    @property
    def indented_length(self) -> int:
        """What a line may take that is only indented further: a few columns more beat a line broken anew."""
        return self.line_length if self.is_bounded else max(self.line_length, _LONGEST_INFERRED)


def _indent(source: SourceTree) -> str:
    """The indentation most blocks add to that of their header."""
    units: Counter[str] = Counter()
    for statement in source.blocks:
        for block in blocks_of(statement)[:1]:
            if not source.starts_line(block[0]):
                continue
            outer = _leading_whitespace(source.lines[statement.lineno - 1])
            inner = _leading_whitespace(source.lines[source.first_line(block[0]) - 1])
            if inner != outer and inner.startswith(outer):
                units[inner[len(outer) :]] += 1
    return units.most_common(1)[0][0] if units else _DEFAULT_INDENT


def _aligns(source: SourceTree) -> bool:
    """Whether calls of several lines have the first argument behind the bracket and the next lines begin below it, half of them or more.

    No formatter would leave any so.
    """
    found: Counter[bool] = Counter()
    for call in walk(source.tree):
        if not isinstance(call, ast.Call) or call.lineno == call.end_lineno:
            continue
        arguments = sorted((a.lineno, a.col_offset) for a in (*call.args, *call.keywords))
        if not arguments:
            continue
        (line, column), *rest = arguments
        if line != call.func.end_lineno:
            found[False] += 1
        elif below := [place for place in rest if place[0] != line]:
            found[below[0][1] == column] += 1
    return found[True] > 0 and found[True] >= found[False]


def _leading_whitespace(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _newline(lines: list[str]) -> str:
    ends = Counter(line[len(line.rstrip("\r\n")) :] for line in lines)
    del ends[""]
    return ends.most_common(1)[0][0] if ends else "\n"


def _longest_line(source: SourceTree) -> int:
    """What the file itself takes for a line that is not too long."""
    longest = max((width(line.rstrip()) for line in source.lines), default=0)
    if longest > _BLACK_LINE_LENGTH:
        rows = (source.lines[number - 1].rstrip() for number in source.line_structure.code)
        longest = max(map(width, rows), default=0)
    return max(_BLACK_LINE_LENGTH, min(longest, _LONGEST_INFERRED))


def _configured_line_length(path: Path) -> int | None:
    """The line length of black or ruff in the nearest pyproject.toml."""
    for folder in path.absolute().parents:
        configuration = folder / "pyproject.toml"
        if configuration.is_file():
            return _line_length_in(configuration)
    return None


def _line_length_in(configuration: Path) -> int | None:
    text = configuration.read_text(encoding="utf-8", errors="replace")
    if not re.search(r"line[-_]length", text):
        return None
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        tools: dict[str, Any] = toml.loads(text).get("tool", {})
    except toml.TOMLDecodeError:
        return None
    for tool in ("black", "ruff"):
        length = tools.get(tool, {}).get("line-length")
        if isinstance(length, int):
            return length
    return None
