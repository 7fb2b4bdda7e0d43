"""The script as it is in another commit: what ``git`` has there stands in for what the working tree has now.

The base runs in the working tree, with the texts of the commit in place of the files that differ, instead of in a
checkout of its own: data sets, weights and everything else that git does not know are then there for both.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import TorchoptError
from ..execution.runner import ScriptVersion
from ..source import SourceFile

_SECONDS = 120


@dataclass(frozen=True)
class Base:
    """A commit: ``name`` as the user gave it, ``texts`` of the files that it has otherwise than the working tree.

    ``only_now`` are files that it does not have, of which ``absent`` are hidden from what runs in it: a new package
    ``model/`` would be imported in place of its ``model.py``. ``unreadable`` are those that differ and are no texts.
    """

    name: str
    texts: dict[Path, str]
    only_now: frozenset[Path]
    absent: frozenset[Path]
    unreadable: tuple[Path, ...]

    def version_of(self, script: Path, args: tuple[str, ...]) -> ScriptVersion:
        """``script`` as it was there. Raises TorchoptError when it was not, or not as text."""
        real = script.resolve()
        if real in self.only_now:
            raise TorchoptError(f"{self.name} has no such file: nothing to compare with", script)
        if real in self.unreadable:
            raise TorchoptError(f"what {self.name} has of it is no Python text", script)
        return ScriptVersion(script, self.texts, args, absent=self.absent)


def read_base(name: str, folder: Path) -> Base:
    """The commit ``name`` of the repository around ``folder``.

    Raises TorchoptError when there is no repository or no such commit.
    """
    root = Path(_git(folder, "rev-parse", "--show-toplevel").decode().strip()).resolve()
    commit = _commit(root, name)
    texts: dict[Path, str] = {}
    added: set[Path] = set()
    unreadable: list[Path] = []
    for path, was_file, is_file in _differing(root, commit):
        text = None
        if was_file is None:
            added.add(root / path)
            continue
        if was_file and is_file is not False:
            text = _text(root, commit, path)
        if text is None:
            unreadable.append(root / path)
        else:
            texts[root / path] = text
    untracked = {root / path for path in _listed(root, "ls-files", "--others", "-z", "--", "*.py")}
    shadowing = {p for p in untracked if p.name == "__init__.py" and _as_module(p) in texts}
    absent = {path for path in added if path.suffix == ".py"} | shadowing
    only_now = frozenset(added | untracked)
    return Base(name, texts, only_now, frozenset(absent), tuple(unreadable))


def _commit(root: Path, name: str) -> str:
    told = f"--base: no such commit here: {name}"
    if _git(root, "rev-parse", "--is-shallow-repository").strip() == b"true":
        told += " (of this shallow clone; `fetch-depth: 0` of actions/checkout fetches all commits)"
    given = f"{name}^{{commit}}"
    return (
        _git(root, "rev-parse", "--verify", "--end-of-options", given, told=told).decode().strip()
    )


def _differing(root: Path, commit: str) -> Iterator[tuple[str, bool | None, bool | None]]:
    """The paths at which ``commit`` differs from the working tree, and whether there was, and is, a file.

    None is for nothing at all, False for a symbolic link or a repository of its own.
    """
    listed = _listed(root, "diff", "--raw", "--no-renames", "-z", commit, "--")
    for modes, path in zip(listed[::2], listed[1::2], strict=True):
        was, now = modes.lstrip(":").split(" ")[:2]
        yield path, _is_file(was), _is_file(now)


def _is_file(mode: str) -> bool | None:
    return mode.startswith("100") if int(mode) else None


def _text(root: Path, commit: str, path: str) -> str | None:
    """What ``commit`` has at ``path``, as a checkout would write it (line ends, Git LFS); None where that is no text."""
    data = _git(root, "cat-file", "--filters", f"{commit}:{path}")
    try:
        return SourceFile.of(root / path, data).text if path.endswith(".py") else data.decode()
    except (TorchoptError, UnicodeDecodeError):
        return None


def _as_module(package: Path) -> Path:
    """``model.py`` for ``model/__init__.py``."""
    return package.parent.with_name(f"{package.parent.name}.py")


def _listed(root: Path, *arguments: str) -> list[str]:
    return os.fsdecode(_git(root, *arguments)).split("\0")[:-1]


def _git(folder: Path, *arguments: str, told: str | None = None) -> bytes:
    """What git prints; ``told`` is what to tell when it fails, what git says by default."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TorchoptError(f"--base: git does not run: {error}") from None
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())
        raise TorchoptError(told or f"--base: {said or 'git failed'}")
    return done.stdout
