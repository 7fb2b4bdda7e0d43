"""From the paths on the command line to the scripts worth understanding.

Only looks at bytes: a file that never says ``torch`` and imports no given file that does is not parsed at all.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import TorchoptError

_NOT_ENTERED = frozenset({"__pycache__", "node_modules", "site-packages"})
_ENVIRONMENT_MARKS = frozenset({"pyvenv.cfg", "conda-meta"})
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^#\r\n]*)|import[ \t]+([^#\r\n]*))",
    re.MULTILINE,
)
_NAME = re.compile(rb"[\w.]+")
_ALIAS = re.compile(rb"[ \t]+as[ \t]+\w+")


@dataclass(frozen=True)
class Discovery:
    """What the command line named.

    ``scripts`` holds absolute paths: first those that no other given file imports, then the others, which
    usually turn out to be modules of the first.
    """

    scripts: tuple[Path, ...]
    errors: tuple[TorchoptError, ...]
    groups: tuple[tuple[Path, ...], ...] = ()
    """The scripts, those together that import each other or the same given file."""


@dataclass(frozen=True)
class _Candidate:
    """A Python file: no more of it than is needed, since a tree may hold many."""

    path: Path
    imported: frozenset[bytes]
    """The dotted names its import statements may mean as modules."""
    root: Path
    """The folder given on the command line, or the file's own: imports are looked for up to here."""
    worth_reading: bool
    """Whether the user named this very file, or its text mentions torch."""

    @classmethod
    def of(cls, path: Path, data: bytes, root: Path, named: bool) -> _Candidate:
        # NUL bytes: not Python, or an encoding in which "torch" looks otherwise; reading it tells.
        worth_reading = named or b"torch" in data or b"\0" in data
        return cls(path, frozenset(_dotted_names(data)), root, worth_reading)


def discover(paths: Sequence[Path]) -> Discovery:
    """Find the scripts in ``paths``, files and folders; what cannot be read is an error of its own."""
    errors: list[TorchoptError] = []
    candidates: dict[str, _Candidate] = {}
    for path in paths:
        found = 0
        for file, root, named in _files(Path(os.path.abspath(path))):
            found += 1
            try:
                candidate = _Candidate.of(file, file.read_bytes(), root, named)
            except OSError as error:
                errors.append(TorchoptError(f"cannot be read: {error.strerror}", file))
                continue
            key = os.path.realpath(file)
            if named or key not in candidates:
                candidates[key] = candidate
        if not found:
            missing = not os.path.lexists(path)
            message = "no such file or folder" if missing else "no Python file in this folder"
            errors.append(TorchoptError(message, path))
    imports = {key: _imported(key, candidates) for key in candidates}
    relevant = _reaching_torch(candidates, imports)
    imported = {target for key in relevant for target in imports[key]}
    ordered = sorted((key for key in candidates if key in relevant), key=imported.__contains__)
    groups = _groups(ordered, imports)
    return Discovery(
        tuple(candidates[key].path for key in ordered),
        tuple(errors),
        tuple(tuple(candidates[key].path for key in group) for group in groups),
    )


def _groups(keys: Sequence[str], imports: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """``keys`` in the sets that no import leads out of, in their order."""
    linked: dict[str, set[str]] = {key: set() for key in imports}
    for key, targets in imports.items():
        for target in targets:
            linked[key].add(target)
            linked[target].add(key)
    groups: dict[str, list[str]] = {}
    leaders: dict[str, str] = {}
    for key in keys:
        if key not in leaders:
            pending = [key]
            while pending:
                reached = pending.pop()
                if reached not in leaders:
                    leaders[reached] = key
                    pending += linked[reached]
        groups.setdefault(leaders[key], []).append(key)
    return list(groups.values())


def _files(path: Path) -> Iterator[tuple[Path, Path, bool]]:
    if path.is_dir():
        yield from ((file, path, False) for file in python_files(path))
    elif os.path.lexists(path):
        yield path, path.parent, True


def python_files(path: Path) -> Iterator[Path]:
    """The Python files below the folder ``path``, but for those of environments and in hidden folders."""
    for folder, folders, names in os.walk(path):
        if folder != str(path) and _ENVIRONMENT_MARKS.intersection([*folders, *names]):
            folders.clear()
            continue
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _NOT_ENTERED)
        for name in sorted(names):
            if name.endswith(".py") and not name.startswith("."):
                file = Path(folder, name)
                if not _waits(file):
                    yield file


def _waits(file: Path) -> bool:
    """Whether reading ``file`` waits for another process: a named pipe, a terminal. What links nowhere does not."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _imported(key: str, candidates: Mapping[str, _Candidate]) -> frozenset[str]:
    """The given files that the one called ``key`` may import, found by the text of its import statements.

    Generous: whether they really are its modules is for the analysis to say.
    """
    folder = Path(key).parent
    around = [str(folder), *map(str, folder.parents)]
    root = os.path.realpath(candidates[key].root)
    inside = [base for base in around if Path(base).is_relative_to(root)]
    found: set[str] = set()
    for written in candidates[key].imported:
        name = written.lstrip(b".")
        level = len(written) - len(name)
        for base in [around[min(level, len(around)) - 1]] if level else inside:
            stem = base
            for part in name.decode("ascii", "replace").split("."):
                stem = os.path.join(stem, part)
                found.update({stem + ".py", os.path.join(stem, "__init__.py")})
    return frozenset(found & candidates.keys() - {key})


def _dotted_names(data: bytes) -> Iterator[bytes]:
    for match in _IMPORT.finditer(data):
        module, names, modules = match.groups()
        if modules is not None:
            yield from _NAME.findall(_ALIAS.sub(b"", modules))
        else:
            separator = b"" if module.endswith(b".") else b"."
            yield module
            for name in _NAME.findall(_ALIAS.sub(b"", names)):
                yield module + separator + name


def _reaching_torch(
    candidates: Mapping[str, _Candidate], imports: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """The files that mention torch, and those that import them, directly or not."""
    relevant = {key for key, candidate in candidates.items() if candidate.worth_reading}
    growing = True
    while growing:
        importers = {key for key, targets in imports.items() if targets & relevant} - relevant
        relevant |= importers
        growing = bool(importers)
    return frozenset(relevant)
