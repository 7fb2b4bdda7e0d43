"""``rewrite --split-patches``: a patch per transform, the scripts left alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import TorchoptError
from ..pipeline.diff_paths import DiffPaths
from ..pipeline.rewrite import Rewritten
from ..pipeline.split_patches import Rewrite, split_patches
from ..source import SourceFile, write_all
from ..terminal import display_path, print_note
from .diffs import note_where_to_apply

_NAME = re.compile(r"\d{2,}-.+\.patch")


def write_patches(
    whole: Rewritten,
    groups: Sequence[Rewritten],
    rewrite: Rewrite,
    transforms: Sequence[str],
    folder: Path,
) -> None:
    """Write the patches of ``whole`` to ``folder``, which is made if there are any; what else is there stays.

    The arguments are those of :func:`..pipeline.split_patches.split_patches`. Raises :class:`TorchoptError` when ``folder``
    cannot hold them.
    """
    if not whole.changed:
        return
    paths = DiffPaths.of((file.path for file in whole.changed), from_repository=True)
    patches = list(split_patches(whole, groups, rewrite, transforms, paths))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"--split-patches: cannot be made: {error.strerror or error}"
        raise TorchoptError(message, folder) from error
    contents = {folder / patch.file_name(n): patch.content for n, patch in enumerate(patches, 1)}
    replaced = [
        path for path, data in contents.items() if path.is_file() and path.read_bytes() != data
    ]
    # A patch holds lines in the encodings of its files, so its bytes are no text: latin-1 has one character for each.
    write_all(
        SourceFile(path, data.decode("latin-1"), "latin-1") for path, data in contents.items()
    )
    count = "1 patch" if len(patches) == 1 else f"{len(patches)} patches"
    print_note(f"{count} in {display_path(folder)}, for `git apply` in the order of their numbers")
    note_where_to_apply(paths)
    for path in replaced:
        print_note(f"{display_path(path)} is replaced")
    for path in sorted(folder.iterdir()):
        if _NAME.fullmatch(path.name) and path not in contents:
            print_note(f"{display_path(path)} was there before and is none of these patches")
