"""Files that a script wrote, other than checkpoints: kept from the scratch area before that is removed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from .observations import WrittenFile
from .overlay import Overlay
from .probe.mirror import Mirror

ARRAYS = frozenset({".npy", ".npz", ".safetensors"})
"""Suffixes of files of arrays."""
COMPARED = ARRAYS | {
    ".csv", ".dat", ".json", ".jsonl", ".log", ".md", ".ndjson", ".out", ".tsv", ".txt", ".yaml", ".yml",
}  # fmt: skip
"""Suffixes of the files whose content is compared: arrays and text."""
_KEPT_FILE_BYTES = 8 << 20
_KEPT_BYTES = 64 << 20
_MOST_FILES = 2000
"""A script that writes more than that makes its data, and none of it is looked at."""
_NOT_RESULTS = frozenset({"__pycache__", "mlruns", "wandb"})
_FOLDER = "files"


def written_files(overlay: Overlay, folder: Path) -> tuple[WrittenFile, ...]:
    """The files below the working directory and the script's folder that the run made or changed.

    The content of those to be compared is copied below ``folder``, as far as there is room.
    """
    mirror = Mirror(str(overlay.scratch))
    places = dict.fromkeys(
        place
        for top in (overlay.cwd, overlay.entry.parent)
        for place in _files(str(top), mirror, overlay.given)
    )
    if len(places) > _MOST_FILES:
        return ()
    found: list[WrittenFile] = []
    left = _KEPT_BYTES
    for number, place in enumerate(sorted(places)):
        path = os.path.relpath(place, overlay.cwd)
        size = os.path.getsize(place)
        kept = None
        if Path(place).suffix.lower() in COMPARED and size <= min(_KEPT_FILE_BYTES, left):
            left -= size
            kept = f"{_FOLDER}/{number}{Path(place).suffix.lower()}"
            (folder / _FOLDER).mkdir(exist_ok=True)
            shutil.copyfile(place, folder / kept)
        shown = path if not path.startswith("..") else mirror.original(place)
        found.append(WrittenFile(shown, size, kept))
    return tuple(found)


def _files(top: str, mirror: Mirror, given: Mapping[str, bytes]) -> Iterator[str]:
    for parent, folders, names in os.walk(top):
        folders[:] = [
            one
            for one in folders
            if one not in _NOT_RESULTS and not os.path.islink(os.path.join(parent, one))
        ]
        for name in names:
            place = os.path.join(parent, name)
            if not name.endswith((".py", ".pyc")) and _is_new(place, mirror.original(place), given):
                yield place


def _is_new(place: str, original: str, given: Mapping[str, bytes]) -> bool:
    """Whether the file at ``place`` is more than the mirror's own copy of the user's, or what it was ``given`` for that."""
    if os.path.islink(place) or not os.path.isfile(place):
        return False
    instead = given.get(os.path.realpath(original))
    if instead is not None:
        return Path(place).read_bytes() != instead
    try:
        before = os.stat(original)
    except OSError:
        return True
    now = os.stat(place)
    if (before.st_size, before.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
        return False
    return before.st_size != now.st_size or _digest(place) != _digest(original)


def _digest(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.blake2b(file.read()).digest()
