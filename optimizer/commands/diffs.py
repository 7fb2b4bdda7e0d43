"""Diffs on the terminal, and where `git apply` takes them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..pipeline.diff_paths import DiffPaths
from ..pipeline.result import RewrittenFile
from ..terminal import display_path, painter, print_note


def print_diff(files: Sequence[RewrittenFile]) -> None:
    """Print the changes of ``files`` to stdout, and tell on stderr where the diff applies, if that is elsewhere."""
    from ..pipeline.report import to_diff

    if not files:
        return
    new = any(file.created for file in files)
    paths = DiffPaths.of((file.path for file in files), from_repository=new)
    for file in files:
        sys.stdout.buffer.write(to_diff(file, paths, painter(sys.stdout)))
    sys.stdout.flush()
    note_where_to_apply(paths)


def note_where_to_apply(paths: DiffPaths) -> None:
    """Tell where `git apply` finds all ``paths``, where that is not the working directory."""
    if paths.outside:
        print_note(
            f"run `git apply` in {display_path(paths.root)}, which the paths are relative to"
        )
