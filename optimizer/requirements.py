"""The torch a project says it needs, for when no installed one can be asked.

Read from what the nearest folder holds: ``requirements*.txt``, ``pyproject.toml``, ``environment.yml``, ``setup.cfg``,
``setup.py``, ``Pipfile``. A pinned version is that version. A range is its lower bound, so that what is written runs on
everything the project allows; a lower bound older than all that torchopt writes for says nothing, and an upper bound
then counts.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from .options import NEWEST_TORCH, OLDEST_TORCH

Version = tuple[int, int]

_LINE = re.compile(
    r"""^[\s\-"']*(?:[\w-]+::)?(?:torch|pytorch)(?:\[[^\]]*\])?["']?\s*(?:=(?=\s*["'{])|(?=[=<>!~^*\s#;,@"']|$))(?P<rest>.*)""",
    re.IGNORECASE,
)
_WHEEL = re.compile(r"/torch-(\d+)\.(\d+)")
_CLAUSE = re.compile(r"(===?|~=|>=|<=|!=|<|>|=|\^)\s*v?(\d+)((?:\.\d+)*)(\.\*)?")
_LAST_OF_MAJOR = {0: (0, 4), 1: (1, 13)}
_NO_BOUND: Version = (0, 0)
_REPOSITORY = ".git"


@dataclass(frozen=True)
class TorchRequirement:
    """The version ``path`` asks for in ``line`` (from 1)."""

    version: Version
    path: Path
    line: int


def required_torch(folder: Path) -> TorchRequirement | None:
    """What the project around ``folder`` requires of torch: the nearest file that says so, up to the repository's root."""
    folder = folder.absolute()
    for parent in (folder, *folder.parents):
        for pattern, lines in _READERS:
            for path in sorted(parent.glob(pattern)):
                found = _requirement(path, lines)
                if found is not None:
                    return found
        if (parent / _REPOSITORY).exists():
            return None
    return None


def version_meant(specification: str) -> Version | None:
    """The torch to write for where ``specification`` (``>=2.3,<3``) is what is required; None where it leaves all open."""
    wheel = _WHEEL.search(specification)
    if wheel is not None:
        return int(wheel[1]), int(wheel[2])
    lowest = _NO_BOUND
    highest = NEWEST_TORCH
    for operator, major, rest, wildcard in _CLAUSE.findall(specification):
        numbers = (int(major), *(int(number) for number in rest.split(".")[1:]))
        version = (numbers[0], numbers[1] if len(numbers) > 1 else 0)
        has_minor = len(numbers) > 1
        if operator in {"==", "===", "="} and (has_minor or not wildcard):
            return version
        if operator == "~=" and len(numbers) > 2:
            return version
        if operator in {"==", "===", ">=", ">", "~=", "^"}:
            lowest = max(lowest, version)
        if operator in {"==", "===", "~=", "^"}:
            highest = min(highest, _LAST_OF_MAJOR.get(version[0], highest))
        if operator == "<=" or (operator == "<" and any(numbers[2:])):
            highest = min(highest, version)
        elif operator == "<":
            highest = min(highest, _before(version))
    if lowest >= OLDEST_TORCH:
        return lowest
    return highest if highest < NEWEST_TORCH else None


def _before(version: Version) -> Version:
    major, minor = version
    if minor:
        return major, minor - 1
    return _LAST_OF_MAJOR.get(major - 1, NEWEST_TORCH)


def _requirement(
    path: Path, lines: Callable[[str], Iterator[tuple[int, str]]]
) -> TorchRequirement | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    for number, line in lines(text):
        match = _LINE.match(line)
        specification = match["rest"] if match else line if _WHEEL.search(line) else ""
        version = version_meant(specification.partition(";")[0].partition(" #")[0])
        if version is not None:
            return TorchRequirement(version, path, number)
    return None


def _every_line(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("#"):
            yield number, line


def _project_table(text: str) -> Iterator[tuple[int, str]]:
    """The dependencies in ``pyproject.toml``, those of PEP 621 and those of Poetry."""
    if "torch" not in text:
        return
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document: Any = toml.loads(text)
    except ValueError:
        return
    found: list[str] = [*document.get("project", {}).get("dependencies", [])]
    poetry = document.get("tool", {}).get("poetry", {}).get("dependencies", {})
    for name, value in cast("dict[str, Any]", poetry).items():
        version: object = (
            cast("dict[str, object]", value).get("version") if isinstance(value, dict) else value
        )
        if isinstance(version, str):
            bare = re.match(r"v?\d", version)
            found.append(f"{name} {'==' if bare else ''}{version}")
    for dependency in found:
        if _LINE.match(dependency):
            yield _line_of(text, dependency), dependency


def _line_of(text: str, dependency: str) -> int:
    lines = text.splitlines()
    quoted = (i for i, line in enumerate(lines, 1) if dependency in line)
    named = (i for i, line in enumerate(lines, 1) if _LINE.match(line))
    return next(quoted, next(named, 1))


def _setup_call(text: str) -> Iterator[tuple[int, str]]:
    """The strings of ``install_requires`` in ``setup.py``, and of lists with a name like it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="install_requires", value=value):
                pass
            case ast.Assign(targets=[target], value=value) if (
                "require" in ast.unparse(target).lower()
            ):
                pass
            case _:
                continue
        for part in value.elts if isinstance(value, ast.List | ast.Tuple) else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, part.value


_READERS: tuple[tuple[str, Callable[[str], Iterator[tuple[int, str]]]], ...] = (
    ("requirements*.txt", _every_line),
    ("pyproject.toml", _project_table),
    ("environment*.y*ml", _every_line),
    ("setup.cfg", _every_line),
    ("setup.py", _setup_call),
    ("Pipfile", _every_line),
)
