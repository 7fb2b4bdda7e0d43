"""Binary files as text that can be compared: databases of SQLite, archives.

Their own bytes differ where the content does not: an archive has the time in it, a database its history.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import re
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

_SQLITE = b"SQLite format 3\0"
_WITH_DATABASES = ("-journal", "-shm", "-wal")
"""Endings of what SQLite writes beside a database (https://www.sqlite.org/tempfiles.html)."""
_CONTROL = re.compile(rb"[\0-\x06\x0e-\x1a]")
_UNREADABLE = (zipfile.BadZipFile, EOFError, OSError, RuntimeError, zlib.error)
_LETTERS = bytes.maketrans(b"0123456789", b"ghijklmnop")


def as_text(place: Path | None, content: bytes, most: int) -> str | None:
    """What is in a file with this ``content``, in at most so many bytes; None where that is not known how to read, as of a database that has no ``place``."""
    if place is not None and content.startswith(_SQLITE):
        with suppress(sqlite3.Error, UnicodeError):
            return _limited(_rows(place), most)
    elif zipfile.is_zipfile(io.BytesIO(content)):
        with suppress(*_UNREADABLE), zipfile.ZipFile(io.BytesIO(content)) as archive:
            return None if is_network(archive) else _limited(_members(archive, most), most)
    return None


def members(content: bytes, most: int) -> dict[str, bytes] | None:
    """The members of an archive by their names, up to ``most`` bytes in all; None of anything else, and of what torch has written."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with suppress(*_UNREADABLE), zipfile.ZipFile(io.BytesIO(content)) as archive:
            told = sorted((one for one in archive.infolist() if not one.is_dir()), key=_name)
            of_torch = is_network(archive) or any(_name(one).endswith("/data.pkl") for one in told)
            if not of_torch and sum(one.file_size for one in told) <= most:
                return {_name(one): archive.read(one) for one in told}
        return None
    with suppress(tarfile.TarError, *_UNREADABLE), tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = sorted((one for one in tar.getmembers() if one.isfile()), key=lambda one: one.name)
        if files and sum(one.size for one in files) <= most:  # zeros are an archive of nothing
            read = ((one.name, tar.extractfile(one)) for one in files)
            return {name: file.read() for name, file in read if file is not None}
    return None


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename


def belongs_to_database(place: Path) -> bool:
    """Whether SQLite has written this beside the database that it is about."""
    return any(
        place.name.endswith(ending) and place.with_name(place.name.removesuffix(ending)).exists()
        for ending in _WITH_DATABASES
    )


def is_network(archive: zipfile.ZipFile) -> bool:
    """Whether this is what ``torch.jit.save`` writes, in which there is code."""
    return any("/code/" in name for name in archive.namelist())


def is_text(content: bytes) -> bool:
    """Whether these are characters, in UTF-8."""
    if b"\0" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_binary(content: bytes) -> bool:
    """Whether there are characters that stand in no text: control characters, unless it says that it is in UTF-16."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return not wide and _CONTROL.search(content) is not None


def _rows(place: Path) -> Iterator[str]:
    """The statements that would make the database again, what was written ahead of it included."""
    with closing(sqlite3.connect(f"{place.absolute().as_uri()}?mode=ro", uri=True)) as database:
        yield from database.iterdump()


def _members(archive: zipfile.ZipFile, most: int) -> Iterator[str]:
    """Its members by their names: text as it is, else a digest, which has no digits that could be taken for numbers."""
    for info in sorted(archive.infolist(), key=_name):
        yield f"{info.filename}:"
        if info.file_size > most:
            yield "too large"
        elif not info.is_dir():
            member = archive.read(info)
            yield member.decode() if is_text(member) else _told(member)


def _told(content: bytes) -> str:
    return (
        hashlib.blake2b(content, digest_size=16).hexdigest().encode().translate(_LETTERS).decode()
    )


def _limited(lines: Iterator[str], most: int) -> str | None:
    """``lines`` together; None where they are longer."""
    kept: list[str] = []
    for line in lines:
        most -= len(line) + 1
        if most < 0:
            return None
        kept.append(line)
    return "\n".join(kept)
