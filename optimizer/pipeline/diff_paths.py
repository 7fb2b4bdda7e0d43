"""What the paths in a diff are relative to: one folder, in which ``git apply`` finds all of them.

``git apply`` prefixes the paths of a plain diff with the folder it is run in, those below a ``diff --git`` header (which new
files need for their mode) with the root of the repository, and leaves out without a word what is not below the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import TorchoptError


@dataclass(frozen=True)
class DiffPaths:
    """The paths of a diff are relative to ``root``. ``outside`` says that some are not below the working directory."""

    root: Path
    outside: bool

    @classmethod
    def of(cls, paths: Iterable[Path], *, from_repository: bool) -> DiffPaths:
        """Those of a diff of ``paths``: from the working directory, where that goes and nobody wants them ``from_repository``.

        Else from the root of the repository, where there is none from the folder that all are in.
        """
        here, files = Path.cwd(), [_absolute(path) for path in paths]
        outside = not all(file.is_relative_to(here) for file in files)
        try:
            folder = Path(os.path.commonpath([f.parent for f in files])) if outside else here
        except ValueError as error:
            raise TorchoptError("the files that change are on several drives") from error
        return cls(repository_of(folder) if outside or from_repository else here, outside)

    def label(self, path: Path) -> str:
        """``path`` as the diff calls it."""
        return _absolute(path).relative_to(self.root).as_posix()

    @property
    def is_here(self) -> bool:
        """Whether they are relative to the working directory."""
        return self.root == Path.cwd()


def repository_of(folder: Path) -> Path:
    """The root of the repository that ``folder`` is in, else ``folder``."""
    return next((at for at in (folder, *folder.parents) if (at / ".git").exists()), folder)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))
