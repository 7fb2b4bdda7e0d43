"""The mirror: a view of the whole file system, below one scratch folder, that can be written to without harm.

The mirror of ``/home/me/project`` is ``SCRATCH/root/home/me/project``. A mirrored folder begins as one symbolic link
to the original (*folded*). When something inside has to be written, the link becomes a real folder of links to the
original's entries (*unfolded*, as GNU stow calls it), and the entry itself a copy. So a symbolic link in the mirror
that leads out of the scratch area stands for an original nobody has changed yet.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# The functions themselves: the names in `os` are redirected later on, to code that comes back here.
_lstat, _readlink, _symlink, _unlink = os.lstat, os.readlink, os.symlink, os.unlink
_mkdir, _rename, _scandir, _stat = os.mkdir, os.rename, os.scandir, os.stat
_open, _close, _access = os.open, os.close, os.access

SHARED = ("/dev", "/proc", "/sys")
"""Not files of the user's: left as they are."""

COPIED_FILE_BYTES = 1 << 20
COPIED_FOLDER_BYTES = 32 << 20
"""Unfolding copies files up to this size, up to this much per folder: what is a copy is safe from native code too."""


class Mirror:
    """The mirror below ``scratch``, which must be a real path; ``extra`` are further folders left as they are."""

    def __init__(self, scratch: str, extra: tuple[str, ...] = ()) -> None:
        self.scratch = scratch
        self.root = os.path.join(scratch, "root")
        self.extra = extra
        self.shared = (*SHARED, scratch, *extra)
        self._lock = os.path.join(scratch, "lock")
        self._copies = os.path.join(scratch, "copies")

    def make(self) -> None:
        """Make the mirror: the root folder's entries, all folded."""
        _mkdir(self.root)
        self._fill(self.root, "/", copy=False, keep_relative=True)
        Path(self._lock).touch()

    def contains(self, path: str) -> bool:
        """Whether the absolute ``path`` is in the mirror."""
        return _below(path, self.root)

    def place(self, path: str) -> str | None:
        """Where the mirror keeps the absolute, normalised ``path``; None for what is not mirrored."""
        original = self.original(path)
        if any(_below(original, folder) for folder in self.shared):
            return None
        return self.root + original.rstrip("/")

    def original(self, path: str) -> str:
        """The user's own path of a place in the mirror; any other path as it is."""
        return path[len(self.root) :] or "/" if self.contains(path) else path

    def outward(self, place: str) -> str | None:
        """What the link at ``place`` stands for, None when ``place`` is no link out of the scratch area."""
        try:
            target = _readlink(place)
        except OSError:
            return None
        return target if os.path.isabs(target) and not _below(target, self.scratch) else None

    def seen(self, path: str) -> str:
        """Where to read the absolute ``path``: its place in the mirror, which knows what the run changed.

        A path that the mirror lacks and that the run cannot have deleted (it is younger than the mirror, or in a
        folder we may not list) is read as it is.
        """
        place = self.place(path)
        if place is None or place == path or _exists(place):
            return path if place is None else place
        try:
            born = _lstat(path).st_ctime
        except OSError:
            return place
        listed = _access(os.path.dirname(path), os.R_OK)
        return path if born >= _lstat(self._lock).st_ctime or not listed else place

    def unfolded(self, place: str) -> bool:
        """Whether ``place`` is a real folder of the mirror, reached through real folders only."""
        path = self.root
        for name in _names(place, self.root):
            path = os.path.join(path, name)
            if _is_link(path):
                return False
        return _is_folder(path)

    def open_folder(self, place: str, *, copy: bool = True) -> str:
        """Unfold every folder on the way to ``place`` and ``place`` itself; the place with links followed."""
        path = self.root
        for name in _names(place, self.root):
            path = os.path.join(path, name)
            if not _is_link(path):
                continue
            if self.outward(path) is not None:
                self._unfold(path, copy)
            else:
                target = os.path.join(os.path.dirname(path), _readlink(path))
                followed = self.place(os.path.normpath(target))
                path = target if followed is None else self.open_folder(followed, copy=copy)
        return path

    def open_entry(self, place: str) -> str:
        """Make the entry ``place`` of a folder replaceable: created, renamed, removed."""
        return os.path.join(self.open_folder(os.path.dirname(place)), os.path.basename(place))

    def copied(self) -> dict[str, tuple[int, int]]:
        """The size and the time of modification that the copies here were made with, by the paths of the originals: those may be
        written by others meanwhile."""
        noted: dict[str, tuple[int, int]] = {}
        if _exists(self._copies):
            for line in Path(self._copies).read_bytes().split(b"\0")[:-1]:
                size, modified, path = line.split(b" ", 2)
                noted[os.fsdecode(path)] = (int(size), int(modified))
        return noted

    def open_file(self, place: str, *, keep: bool) -> str:
        """Make the file at ``place`` writable: a copy of the original, or nothing yet unless ``keep``."""
        entry = self.open_entry(place)
        target = self.outward(entry)
        if target is None:
            if not _is_link(entry):
                return entry
            linked = os.path.normpath(os.path.join(os.path.dirname(entry), _readlink(entry)))
            followed = self.place(linked)
            return linked if followed is None else self.open_file(followed, keep=keep)
        if _is_folder(target):
            self._unfold(entry, copy=True)
        elif keep and _exists(target):
            self._copy(target, entry)
        else:
            _unlink(entry)
        return entry

    def write(self, path: str, content: bytes) -> None:
        """Put ``content`` where the mirror keeps the absolute ``path``, with the original's mode."""
        place = self.open_file(self.root + path, keep=True)
        mode = stat.S_IMODE(_stat(place).st_mode) if _exists(place) else 0o644
        with self._replacing(place) as new:
            Path(new).write_bytes(content)
            os.chmod(new, mode | stat.S_IWUSR)

    def remove(self, path: str) -> None:
        """Take the absolute ``path`` of a file out of the mirror."""
        place = self.open_entry(self.root + path)
        if _exists(place):
            _unlink(place)

    def _unfold(self, place: str, copy: bool) -> None:
        with self._locked():
            source = self.outward(place)
            if source is None or not _is_folder(source):
                return
            moved = place != self.root + source
            new = f"{place}.unfolding-{os.getpid()}"
            _mkdir(new)
            self._fill(new, source, copy=copy, keep_relative=not moved)
            shutil.copymode(source, new)
            os.chmod(new, stat.S_IMODE(_stat(new).st_mode) | stat.S_IRWXU)
            _unlink(place)
            _rename(new, place)

    def _fill(self, folder: str, source: str, *, copy: bool, keep_relative: bool) -> None:
        """Give ``folder`` an entry for each of ``source``."""
        budget = COPIED_FOLDER_BYTES if copy else 0
        try:
            entries = list(_scandir(source))
        except PermissionError:
            return
        copied: list[tuple[str, str]] = []
        for entry in entries:
            path, name = os.path.join(source, entry.name), os.path.join(folder, entry.name)
            if entry.is_symlink():
                _symlink(self._link_target(path, keep_relative), name)
                continue
            size = _size(path) if budget and entry.is_file() else -1
            if 0 <= size <= COPIED_FILE_BYTES:
                budget = max(0, budget - size)
                _copy_or_link(path, name)
                copied.append((path, name))
            else:
                _symlink(path, name)
        self._note(copied)

    def _link_target(self, link: str, keep_relative: bool) -> str:
        """The target that the user's symbolic ``link`` has in the mirror, so that it still names the same thing."""
        target = _readlink(link)
        if os.path.isabs(target):
            return self.place(os.path.normpath(target)) or target
        return target if keep_relative else link

    def _copy(self, source: str, place: str) -> None:
        with self._replacing(place) as new:
            shutil.copy2(source, new)
            os.chmod(new, stat.S_IMODE(_stat(new).st_mode) | stat.S_IWUSR)
            self._note([(source, new)])

    def _note(self, copies: list[tuple[str, str]]) -> None:
        """Note what those of ``copies``, originals and places, that are no links are like now."""
        lines = [
            b"%d %d %s\0" % (made.st_size, made.st_mtime_ns, os.fsencode(source))
            for source, place in copies
            if not _is_link(place)
            for made in (_stat(place),)
        ]
        if lines:
            descriptor = _open(self._copies, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, b"".join(lines))
            finally:
                _close(descriptor)

    @contextmanager
    def _replacing(self, place: str) -> Generator[str, None, None]:
        """A name beside ``place`` that takes its place at the end."""
        new = f"{place}.copying-{os.getpid()}"
        yield new
        _rename(new, place)

    @contextmanager
    def _locked(self) -> Generator[None, None, None]:
        """Workers unfold too: one process at a time."""
        descriptor = _open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _close(descriptor)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _names(path: str, folder: str) -> list[str]:
    return [name for name in path[len(folder) :].split("/") if name]


def _exists(path: str) -> bool:
    try:
        _lstat(path)
    except OSError:
        return False
    return True


def _size(path: str) -> int:
    """The file's size; -1 when it has gone meanwhile."""
    try:
        return _stat(path).st_size
    except OSError:
        return -1


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(_lstat(path).st_mode)
    except OSError:
        return False


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(_stat(path).st_mode)
    except OSError:
        return False


def _copy_or_link(source: str, place: str) -> None:
    try:
        shutil.copy2(source, place)
    except OSError:  # unreadable: let whoever reads it find out
        _symlink(source, place)
