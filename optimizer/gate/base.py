"""The script as it is in another commit: what ``git`` has there stands in for what the working tree has now.

The base runs in the working tree, with the texts of the commit in place of the files that differ, instead of in a
checkout of its own: data sets, weights and everything else that git does not know are then there for both.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..errors import TorchoptError
from ..execution.runner import ScriptVersion

_SECONDS = 120


@dataclass(frozen=True)
class Base:
    """A commit: ``name`` as the user gave it, ``texts`` of the files that it has otherwise than the working tree.

    ``only_now`` are tracked files that it does not have; ``unreadable`` those that differ and are not text.
    """

    name: str
    texts: dict[Path, str]
    only_now: frozenset[Path]
    unreadable: tuple[Path, ...]

    def version_of(self, script: Path, args: tuple[str, ...]) -> ScriptVersion:
        """``script`` as it was there. Raises TorchoptError when it was not."""
        if script.resolve() in self.only_now:
            raise TorchoptError(f"{self.name} has no such file: nothing to compare with", script)
        return ScriptVersion(script, self.texts, args)


def read_base(name: str, folder: Path) -> Base:
    """The commit ``name`` of the repository around ``folder``.

    Raises TorchoptError when there is no repository or no such commit.
    """
    root = Path(_git(folder, "rev-parse", "--show-toplevel").strip()).resolve()
    told = f"--base: no such commit here: {name}"
    commit = _git(
        root, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}", told=told
    )
    listed = _git(root, "diff", "--name-status", "--no-renames", "-z", commit.strip(), "--")
    fields = listed.split("\0")[:-1]
    texts: dict[Path, str] = {}
    only_now: set[Path] = set()
    unreadable: list[Path] = []
    for status, path in zip(fields[::2], fields[1::2], strict=True):
        if status == "A":
            only_now.add(root / path)
            continue
        try:
            texts[root / path] = _git(root, "show", f"{commit.strip()}:{path}")
        except UnicodeDecodeError:
            unreadable.append(root / path)
    untracked = _git(root, "ls-files", "--others", "-z", "--", "*.py").split("\0")[:-1]
    only_now |= {root / path for path in untracked}
    return Base(name, texts, frozenset(only_now), tuple(unreadable))


def _git(folder: Path, *arguments: str, told: str | None = None) -> str:
    """What git prints; ``told`` is what to tell when it fails, its own last line by default."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TorchoptError(f"--base: git does not run: {error}") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise TorchoptError(told or f"--base: {lines[-1] if lines else 'git failed'}")
    return done.stdout.decode("utf-8")
