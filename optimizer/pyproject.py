"""Finds ``[tool.torchopt]`` in the ``pyproject.toml`` files around a script, and the places of its keys."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, cast

from .errors import TorchoptError

TABLE = ("tool", "torchopt")
_KEY = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_ASSIGNED = re.compile(rf"\s*({_DOTTED})\s*=")

Place: TypeAlias = tuple[int, int]
"""A line and a column, from 1."""


def configuration_table(folder: Path) -> tuple[Path, str, Mapping[str, object]] | None:
    """The nearest ``pyproject.toml`` with a ``[tool.torchopt]``, from ``folder`` upwards: path, text, that table.

    Raises :class:`TorchoptError` (path, line, column) for what is not TOML.
    """
    folder = folder.absolute()
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        try:
            data = path.read_bytes()
        except OSError:
            continue
        if b"torchopt" not in data:
            continue
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise TorchoptError("not valid TOML: it is not in UTF-8", path, line) from None
        table = _table(path, text)
        if table is not None:
            return path, text, table
    return None


def _table(path: Path, text: str) -> Mapping[str, object] | None:
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document: dict[str, Any] = toml.loads(text)
    except ValueError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(place[1]), int(place[2])) if place else (None, None)
        message = re.sub(r" \(at .*\)$", "", str(error))
        raise TorchoptError(f"not valid TOML: {message}", path, line, column) from None
    tool = document.get("tool")
    table = cast("dict[str, object]", tool).get("torchopt") if isinstance(tool, dict) else None
    if not isinstance(table, dict | None):
        raise TorchoptError("tool.torchopt is not a table", path, *place_of(text, *TABLE))
    return cast("dict[str, object] | None", table)


def place_of(text: str, *names: str | int) -> Place | tuple[None, None]:
    """Where the TOML document ``text`` says the last of ``names``, the others being the tables around it.

    A number among them counts the entries of an array of tables, from 0. Where there is no such key the place is that
    of the innermost table around it, None where there is none of those.
    """
    best: tuple[int, Place] | None = None
    for start, said, header in _said(text):
        if said != names[: len(said)] or (best is not None and best[0] >= len(said)):
            continue
        inner = None if header else _inline(text, start, names[len(said) :])
        best = (len(said), _place(text, start if inner is None else inner))
        if len(said) == len(names) or inner is not None:
            break
    return (None, None) if best is None else best[1]


def _said(text: str) -> Iterator[tuple[int, tuple[str | int, ...], bool]]:
    """Each header and key at the beginning of a line: its offset, its name below those of the tables around it, and
    whether it is a header."""
    around: tuple[str | int, ...] = ()
    entries: Counter[tuple[str, ...]] = Counter()
    for line in re.finditer(r"^.*$", text, re.MULTILINE):
        if header := _HEADER.match(line[0]):
            name = _split(header[2])
            around = name
            if header[1] == "[[":
                around = (*name, entries[name])
                entries[name] += 1
            yield line.start() + header.start(1), around, True
        elif assigned := _ASSIGNED.match(line[0]):
            yield line.start() + assigned.start(1), (*around, *_split(assigned[1])), False


def _inline(text: str, start: int, names: tuple[str | int, ...]) -> int | None:
    """The offset of the last of ``names`` in the tables that stand in braces behind ``start``."""
    for name in names:
        wanted = (
            r"\{" if isinstance(name, int) else rf"(?<![\w\"'-])[\"']?{re.escape(name)}[\"']?\s*="
        )
        found = list(re.finditer(wanted, text[start:].split("\n[", 1)[0]))
        index = name if isinstance(name, int) else 0
        if index >= len(found):
            return None
        start += found[index].start()
    return start if names else None


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"' \t") for part in re.findall(_KEY, dotted))


def _place(text: str, offset: int) -> Place:
    return text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1
