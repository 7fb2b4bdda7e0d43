"""Where a version of a script is told to be, and to write, when it runs in another place than the user's file, or than the original."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .observations import Observations


def told_in(run: Observations, entry: Path, own: Path) -> Observations:
    """``run`` with the user's file ``own`` in its tracebacks, whose text has run in the place of ``entry``."""
    there, here = f'File "{entry}"', f'File "{own}"'
    return replace(
        run,
        traceback=run.traceback and run.traceback.replace(there, here),
        stderr=run.stderr.replace(there, here),
        ranks=tuple(told_in(rank, entry, own) for rank in run.ranks),
    )


def written_in(run: Observations, own: Path, folder: Path, cwd: Path) -> Observations:
    """``run`` with what it has written below the folder ``own`` told as if that was ``folder``, in paths as seen from ``cwd``.

    Where the working directory is below ``own`` itself, what lies there may be there for either reason, and stays as it is.
    """
    if cwd.is_relative_to(own):
        return run

    def told(path: str) -> str:
        whole = os.path.normpath(cwd / path)
        if not Path(whole).is_relative_to(own):
            return path
        there = str(folder / Path(whole).relative_to(own))
        seen = os.path.relpath(there, cwd)
        return there if seen.startswith("..") else seen

    return _renamed(run, told)


def _renamed(run: Observations, told: Callable[[str], str]) -> Observations:
    return replace(
        run,
        files=tuple(replace(file, path=told(file.path)) for file in run.files),
        checkpoints=tuple(replace(save, path=told(save.path)) for save in run.checkpoints),
        removed=tuple(told(path) for path in run.removed),
        ranks=tuple(_renamed(rank, told) for rank in run.ranks),
    )
