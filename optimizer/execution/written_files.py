"""Files that a script wrote, other than checkpoints: kept from the scratch area before that is removed."""

from __future__ import annotations

import filecmp
import gzip
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from .legible import as_text, belongs_to_database, is_binary, is_network, is_text, members
from .observations import WrittenFile
from .overlay import Overlay
from .probe.mirror import Mirror

ARRAYS = frozenset({".npy", ".npz", ".safetensors"})
"""Suffixes of files of arrays."""
_TEXT = frozenset(
    {".csv", ".dat", ".json", ".jsonl", ".log", ".md", ".ndjson", ".out", ".tsv", ".txt", ".yaml", ".yml"}
)  # fmt: skip
"""Suffixes of text, in whatever encoding, where it is not binary after all."""
_PROGRAMS = frozenset({".onnx", ".pt2", ".pte", ".so"})
"""Suffixes of exported networks."""
_KEPT_FILE_BYTES = 8 << 20
_DIGESTED_BYTES = 1 << 30
_KEPT_BYTES = 64 << 20
_MOST_FILES = 2000
"""A script that writes more than that makes its data, and none of it is looked at."""
_NOT_RESULTS = frozenset({"__pycache__", "mlruns", "wandb"})
_FOLDER = "files"
_BYTES = ".bin"
_GZIP = b"\x1f\x8b"
_DEEPEST = 4
"""Archives in archives that are opened: there are some that hold themselves."""


def written_files(overlay: Overlay, folder: Path) -> tuple[WrittenFile, ...]:
    """The files below the working directory and the script's folder that the run made or changed.

    The content of those of arrays or text, whatever they are called, and of databases of SQLite as text, is copied below ``folder``, as far as there is room.
    Members of archives are told as files in a folder of the archive's name. A copy of a source file that another text stands in
    for, as scripts keep one beside their results, is told as a copy of the file that is there.
    """
    mirror = Mirror(str(overlay.scratch))
    copied = mirror.copied()
    places = dict.fromkeys(
        place
        for top in (overlay.cwd, overlay.entry.parent)
        for place in _files(str(top), mirror, overlay.given, copied)
    )
    if len(places) > _MOST_FILES:
        return ()
    keep = _Keeper(folder, _sources(overlay))
    found: list[WrittenFile] = []
    for place in sorted(places):
        path = os.path.relpath(place, overlay.cwd)
        shown = path if not path.startswith("..") else mirror.original(place)
        if os.path.islink(place):
            found.append(WrittenFile(shown, 0, leads_to=mirror.original(os.readlink(place))))
        else:
            found.extend(keep(place, shown))
    return tuple(found)


def _sources(overlay: Overlay) -> dict[bytes, bytes]:
    """By the texts that stand in for source files in this run: what is in these files."""
    return {
        content: Path(path).read_bytes()
        for path, content in overlay.given.items()
        if path.endswith(".py") and content.strip() and os.path.isfile(path)
    }


class _Keeper:
    """Copies what can be compared below ``folder``; of the rest, as far as there is room as well, it tells the bytes."""

    def __init__(self, folder: Path, sources: Mapping[bytes, bytes]) -> None:
        self._folder, self._sources = folder, sources
        self._number = 0
        self._left = _KEPT_BYTES
        self._to_digest = _DIGESTED_BYTES

    def __call__(self, place: str, shown: str) -> Iterator[WrittenFile]:
        size, suffix = os.path.getsize(place), Path(place).suffix.lower()
        if size <= min(_KEPT_FILE_BYTES, self._left):
            yield from self._told(shown, size, _unpacked(Path(place).read_bytes()), Path(place))
        elif size > self._to_digest:
            yield WrittenFile(shown, size)
        else:
            self._to_digest -= size
            with open(place, "rb") as file:
                yield WrittenFile(shown, size, digest=_digest_of(suffix, file))

    def _told(
        self, shown: str, size: int, content: bytes, place: Path | None = None, depth: int = 0
    ) -> Iterator[WrittenFile]:
        """What is ``shown`` as this file, with this ``content``: one at a ``place``, or in so many archives in each other."""
        if content in self._sources:
            content = self._sources[content]
            size = len(content)
        suffix = Path(shown).suffix.lower()
        if suffix in ARRAYS or is_text(content) or (suffix in _TEXT and not is_binary(content)):
            yield WrittenFile(shown, size, self._kept(suffix, content))
            return
        packed = None
        if suffix not in _PROGRAMS and depth < _DEEPEST:
            packed = members(content, min(self._left, _KEPT_BYTES // 4))
        if packed is not None:
            yield WrittenFile(shown, size, self._kept(".txt", "\n".join(packed).encode()))
            for name, member in packed.items():
                yield from self._told(f"{shown}/{name}", len(member), member, depth=depth + 1)
            return
        text = None if suffix in _PROGRAMS else as_text(place, content, _KEPT_FILE_BYTES)
        if text is not None:
            yield WrittenFile(shown, size, self._kept(".txt", text.encode()))
            return
        digest = _digest_of(suffix, io.BytesIO(content))
        unread = suffix in _PROGRAMS or zipfile.is_zipfile(io.BytesIO(content))
        raw = None if unread else self._kept(_BYTES, content)
        yield WrittenFile(shown, size, digest=digest, bytes_as=raw)

    def _kept(self, suffix: str, content: bytes) -> str:
        """Where ``content`` is kept now, below the folder."""
        self._left -= len(content)
        (self._folder / _FOLDER).mkdir(exist_ok=True)
        kept = f"{_FOLDER}/{self._number}{suffix if suffix in (*ARRAYS, _BYTES) else '.txt'}"
        self._number += 1
        (self._folder / kept).write_bytes(content)
        return kept


def _digest_of(suffix: str, file: BinaryIO) -> str | None:
    """The digest of a file's bytes; of a network that ``torch.jit.save`` wrote only of its weights, of others none.

    Their code is another wherever the network's is.
    """
    if suffix in _PROGRAMS:
        return None
    if zipfile.is_zipfile(file):
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
            if is_network(archive):
                names = archive.namelist()
                weights = [name for name in names if "/data/" in name]
                return _hash(b"".join(sorted(_hash(archive.read(n)).encode() for n in weights)))
    file.seek(0)
    return _hash(file.read())


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content).hexdigest()


def _unpacked(content: bytes) -> bytes:
    """What was packed by gzip, which notes the time in it; anything else as it is."""
    if content.startswith(_GZIP):
        with suppress(OSError, EOFError, zlib.error), gzip.open(io.BytesIO(content)) as file:
            unpacked = file.read(_KEPT_FILE_BYTES + 1)
            return unpacked if len(unpacked) <= _KEPT_FILE_BYTES else content
    return content


def _files(
    top: str, mirror: Mirror, given: Mapping[str, bytes], copied: Mapping[str, tuple[int, int]]
) -> Iterator[str]:
    for parent, folders, names in os.walk(top):
        folders[:] = [
            one
            for one in folders
            if one not in _NOT_RESULTS and not os.path.islink(os.path.join(parent, one))
        ]
        for name in names:
            place = os.path.join(parent, name)
            if name.endswith((".py", ".pyc")) or belongs_to_database(Path(place)):
                continue
            if _is_new(place, mirror, given, copied):
                yield place


def _is_new(
    place: str, mirror: Mirror, given: Mapping[str, bytes], copied: Mapping[str, tuple[int, int]]
) -> bool:
    """Whether what is at ``place`` is more than the mirror's own copy of the user's file or link, or what it was ``given`` for that.

    ``copied`` tells what such copies were like when they were made: another program may write to the user's file meanwhile.
    """
    original = mirror.original(place)
    if os.path.islink(place):
        as_it_was = os.path.islink(original) and os.readlink(original) == os.readlink(place)
        return mirror.outward(place) is None and not as_it_was
    if not os.path.isfile(place):
        return False
    instead = given.get(os.path.realpath(original))
    if instead is not None:
        return Path(place).read_bytes() != instead
    now = os.stat(place)
    if copied.get(original) == (now.st_size, now.st_mtime_ns):
        return False
    try:
        before = os.stat(original)
    except OSError:
        return True
    if (before.st_size, before.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
        return False
    return before.st_size != now.st_size or not filecmp.cmp(place, original, shallow=False)
