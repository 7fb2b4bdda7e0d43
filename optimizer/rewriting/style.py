"""How a file is laid out, so that what is written into it looks like what is there."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from ..source import SourceFile
from .lines import code_lines, split_lines

TAB_WIDTH = 4
_DEFAULT_INDENT = " " * 4
_BLACK_LINE_LENGTH = 88
_LONGEST_INFERRED = 120


@dataclass(frozen=True)
class Style:
    """``indent`` is one level of indentation, ``newline`` ends a new line, ``line_length`` is in columns."""

    indent: str = _DEFAULT_INDENT
    newline: str = "\n"
    line_length: int = _BLACK_LINE_LENGTH

    @classmethod
    def of(cls, source: SourceFile, tree: ast.Module) -> Style:
        """The style of ``source``, and of its project where that says how long lines may be."""
        lines = split_lines(source.text)
        return cls(
            _indent(lines, tree),
            _newline(lines),
            _configured_line_length(source.path) or _longest_line(source.text, lines),
        )


def width(text: str) -> int:
    """How many columns ``text`` takes."""
    return len(text.expandtabs(TAB_WIDTH))


def _indent(lines: list[str], tree: ast.Module) -> str:
    """The indentation most blocks add to that of their header."""
    units: Counter[str] = Counter()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(node, ast.stmt) or not isinstance(body, list) or not body:
            continue
        first = cast("ast.stmt", body[0])
        outer = _leading_whitespace(lines[node.lineno - 1])
        inner = _leading_whitespace(lines[first.lineno - 1])
        if inner != outer and inner.startswith(outer):
            units[inner[len(outer) :]] += 1
    return units.most_common(1)[0][0] if units else _DEFAULT_INDENT


def _leading_whitespace(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _newline(lines: list[str]) -> str:
    ends = Counter(line[len(line.rstrip("\r\n")) :] for line in lines)
    del ends[""]
    return ends.most_common(1)[0][0] if ends else "\n"


def _longest_line(text: str, lines: list[str]) -> int:
    """What the file itself takes for a line that is not too long."""
    longest = max((width(line.rstrip()) for line in lines), default=0)
    if longest > _BLACK_LINE_LENGTH:
        longest = max((width(lines[number - 1].rstrip()) for number in code_lines(text)), default=0)
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
