"""Send what a script writes into the mirror, and let it read there what it wrote.

Relative paths need no help to be read: the working directory is in the mirror. Before anything is written, the mirror
is made ready for it (see :class:`Mirror`); an absolute path outside is replaced by its place in the mirror. Python
code that gets past these functions meets the audit hook (:mod:`.audit`).
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportMissingTypeArgument=false
# The wrappers take whatever the functions of `os` take.

from __future__ import annotations

import builtins
import functools
import io
import itertools
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from .audit import WRITE_FLAGS, Audit
from .mirror import Mirror

READ, ENTRY, FOLDER, DROP, KEEP = "read", "entry", "folder", "drop", "keep"
"""What is done to a path: looked at; made, moved or removed; removed as a folder; overwritten; changed in place."""

_READING = ("access", "getxattr", "listdir", "listxattr", "stat", "statvfs")
_WRITING = {
    "mkdir": (ENTRY,),
    "mkfifo": (ENTRY,),
    "mknod": (ENTRY,),
    "remove": (ENTRY,),
    "unlink": (ENTRY,),
    "rmdir": (FOLDER,),
    "rename": (ENTRY, ENTRY),
    "replace": (ENTRY, ENTRY),
    "link": (KEEP, ENTRY),
    "symlink": (None, ENTRY),
    "truncate": (KEEP,),
    "chmod": (KEEP,),
    "chown": (KEEP,),
    "lchown": (KEEP,),
    "utime": (KEEP,),
    "setxattr": (KEEP,),
    "removexattr": (KEEP,),
}
_DIRECTORY_DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")


class Redirection:
    """The redirection of this process's file functions into ``mirror``."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self._state = threading.local()
        self._own = mirror.scratch + "/"
        self._replaced: list[tuple[ModuleType, str, Any]] = []
        self._lstat, self._readlink, self._scandir = os.lstat, os.readlink, os.scandir

    def install(self, *, audited: bool) -> None:
        """Redirect this process, for good, with an audit hook if so asked. Forked children inherit it."""
        for name in _READING:
            if hasattr(os, name):
                self._replace(name, self._reading(getattr(os, name)))
        for name, hows in _WRITING.items():
            if hasattr(os, name):
                self._replace(name, self._writing(getattr(os, name), hows))
        for name in ("open", "lstat", "readlink", "scandir", "chdir"):
            self._replace(name, getattr(self, f"_{name}_like")(getattr(os, name)))
        opener = self._file_like(io.open)
        self._replaced.append((io, "open", io.open))
        builtins.open = io.open = opener
        self._replace_in_accessor()
        # With descriptors of folders, rmtree would hold on to folders that get unfolded while it works.
        shutil._use_fd_functions = False  # pyright: ignore[reportAttributeAccessIssue]
        start = subprocess.Popen.__init__
        subprocess.Popen.__init__ = self._popen_like(start)  # pyright: ignore[reportAttributeAccessIssue]
        if audited:
            sys.addaudithook(Audit(self.mirror, lambda: getattr(self._state, "busy", False)))

    def ready(self, path: Any, how: str, directory: int | None = None) -> Any:
        """Make ``path`` ready for ``how`` and give the path to use: itself, unless it lies outside the mirror."""
        if isinstance(path, int) or getattr(self._state, "busy", False):
            return path
        try:
            text = path if type(path) is str else os.fsdecode(path)
        except TypeError:  # the function itself will complain
            return path
        if how is READ and directory is None and not (text.startswith("/") and self._outside(text)):
            return path
        base = os.getcwd() if directory is None else _folder_of(directory)
        full = os.path.normpath(os.path.join(base, text))
        self._state.busy = True
        try:
            used = self._prepare(full, how)
        finally:
            self._state.busy = False
        if used == full and directory is None:
            return path
        return os.fsencode(used) if isinstance(path, bytes) else used

    def _outside(self, path: str) -> bool:
        """Whether an absolute path may lie outside the scratch area; what is inside is read as it is."""
        return not path.startswith(self._own) or "/.." in path

    def _prepare(self, full: str, how: str) -> str:
        """``full`` made ready; ``full`` itself where that path, used as it is, leads to the right place."""
        mirror = self.mirror
        if how is READ:
            return full if mirror.contains(full) else mirror.seen(full)
        place = mirror.place(full)
        if place is None:
            return full
        if how in (ENTRY, FOLDER):
            entry = mirror.open_entry(place)
            if how is FOLDER and mirror.outward(entry):
                mirror.open_folder(entry)
        else:
            mirror.open_file(place, keep=how is KEEP)
        return place

    def _replace(self, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(os, name)
        for group in (
            os.supports_dir_fd,
            os.supports_fd,
            os.supports_follow_symlinks,
            os.supports_effective_ids,
        ):
            if original in group:
                group.add(wrapper)
        self._replaced.append((os, name, original))
        setattr(os, name, wrapper)

    def _replace_in_accessor(self) -> None:
        """Python 3.10's pathlib has references of its own to the functions: it shall call those that are there by then."""
        accessor = getattr(pathlib, "_NormalAccessor", None)
        for name, value in list(vars(accessor).items()) if accessor else ():
            for owner, function, original in self._replaced:
                if value is original:
                    setattr(accessor, name, staticmethod(_looked_up(owner, function)))

    def _reading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            if args:
                args = (self.ready(args[0], READ, kwargs.get("dir_fd")), *args[1:])
            elif "path" in kwargs:
                args = (self.ready(kwargs.pop("path"), READ, kwargs.get("dir_fd")),)
            if kwargs and not kwargs.get("follow_symlinks", True) and function.__name__ == "stat":
                return self.lstat_of(args[0])
            return function(*args, **kwargs)

        return wrapper

    def _writing(self, function: Callable[..., Any], hows: tuple) -> Callable[..., Any]:
        """``hows`` say what is done to the one path, or to ``src`` and ``dst``."""
        names = ("path",) if len(hows) == 1 else ("src", "dst")
        descriptors = ("dir_fd",) if len(hows) == 1 else ("src_dir_fd", "dst_dir_fd")
        if function.__name__ == "symlink":
            descriptors = ("dir_fd", "dir_fd")

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            new = list(args)
            for position, (name, descriptor, how) in enumerate(
                zip(names, descriptors, hows, strict=True)
            ):
                directory = kwargs.get(descriptor)
                if how is None:
                    continue
                if position < len(args):
                    new[position] = self.ready(args[position], how, directory)
                elif name in kwargs:
                    kwargs[name] = self.ready(kwargs[name], how, directory)
            if function.__name__ == "mkdir":
                self._open_existing(new[0] if new else kwargs["path"])
            return function(*new, **kwargs)

        return wrapper

    def _open_existing(self, path: Any) -> None:
        """``mkdir`` of a folder that is there says that the script is about to write in it: be ready for any writer."""
        full = os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))
        if self.mirror.contains(full) and self.mirror.outward(full) and not _crowded(full):
            self._state.busy = True
            try:
                self.mirror.open_folder(full)
            finally:
                self._state.busy = False

    def _file_like(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(file, mode="r", *args, **kwargs):
            how = READ
            if mode not in ("r", "rb") and set(mode) & set("wax+"):
                how = DROP if "w" in mode else ENTRY if "x" in mode else KEEP
            return function(self.ready(file, how), mode, *args, **kwargs)

        return wrapper

    def _open_like(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(path, flags, mode=0o777, *, dir_fd=None):
            how = READ
            if flags & WRITE_FLAGS:
                how = ENTRY if flags & os.O_EXCL else DROP if flags & os.O_TRUNC else KEEP
            new = self.ready(path, how, dir_fd)
            return function(new, flags, mode, dir_fd=dir_fd if new is path else None)

        return wrapper

    def lstat_of(self, path: Any) -> os.stat_result:
        """``lstat`` in which a link of the mirror looks like the original it stands for."""
        result = self._lstat(path)
        target = self.original_of(path, result)
        return result if target is None else self._lstat(target)

    def original_of(self, path: Any, result: os.stat_result | None = None) -> str | None:
        """The original behind ``path`` where that is a link the mirror made, else None."""
        if isinstance(path, int):
            return None
        if result is not None and not stat.S_ISLNK(result.st_mode):
            return None
        full = os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))
        # Below a folded folder, links are the user's own.
        if not self.mirror.contains(full) or not self.mirror.unfolded(os.path.dirname(full)):
            return None
        return self.mirror.outward(full)

    def _lstat_like(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(path, *, dir_fd=None):
            return self.lstat_of(self.ready(path, READ, dir_fd))

        return wrapper

    def _readlink_like(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(path, *, dir_fd=None):
            new = self.ready(path, READ, dir_fd)
            target = function(self.original_of(new) or new)
            text = self.mirror.original(os.fsdecode(target))
            return os.fsencode(text) if isinstance(target, bytes) else text

        return wrapper

    def _scandir_like(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(path="."):
            entries = function(self.ready(path, READ))
            return entries if isinstance(path, int) else _Entries(entries, self)

        return wrapper

    def _chdir_like(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(path):
            return function(self.folder(path))

        return wrapper

    def folder(self, path: Any) -> Any:
        """The folder ``path`` as one to work in: unfolded, in the mirror."""
        if isinstance(path, int):
            return path
        full = os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))
        place = self.mirror.place(full)
        if place is None or not os.path.isdir(place):
            return path
        self._state.busy = True
        try:
            return self.mirror.open_folder(place)
        finally:
            self._state.busy = False

    def _popen_like(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(popen, *args, **kwargs):
            if kwargs.get("cwd") is not None:
                kwargs["cwd"] = self.folder(kwargs["cwd"])
            return function(popen, *args, **kwargs)

        return wrapper


class _Entry:
    """A directory entry that is a link of the mirror, looking like the original it stands for."""

    def __init__(self, entry: os.DirEntry, redirection: Redirection) -> None:
        self.name, self.path = entry.name, entry.path
        self._entry, self._redirection = entry, redirection

    def __fspath__(self):
        return self.path

    def __repr__(self):
        return f"<DirEntry {self.name!r}>"

    def inode(self):
        return self.stat(follow_symlinks=False).st_ino

    def is_symlink(self):
        return stat.S_ISLNK(self.stat(follow_symlinks=False).st_mode)

    def is_junction(self):
        return False

    def is_dir(self, *, follow_symlinks=True):
        return self._entry.is_dir() and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks=True):
        return self._entry.is_file() and (follow_symlinks or not self.is_symlink())

    def stat(self, *, follow_symlinks=True):
        return self._entry.stat() if follow_symlinks else self._redirection.lstat_of(self.path)


class _Entries:
    """The iterator that ``os.scandir`` gives, over such entries."""

    def __init__(self, entries: Any, redirection: Redirection) -> None:
        self._entries, self._redirection = entries, redirection

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self):
        entry = next(self._entries)
        if not entry.is_symlink() or self._redirection.original_of(entry.path) is None:
            return entry
        return _Entry(entry, self._redirection)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._entries.close()


def _looked_up(owner: ModuleType, name: str) -> Callable[..., Any]:
    """Calls what ``owner`` has as ``name`` when it is called."""
    return lambda *args, **kwargs: getattr(owner, name)(*args, **kwargs)


def _crowded(folder: str) -> bool:
    """Whether ``folder`` has so many entries that unfolding it had better wait until it must be."""
    with os.scandir(folder) as entries:
        return next(itertools.islice(entries, 10_000, None), None) is not None


def _folder_of(descriptor: int) -> str:
    """The path of an open folder."""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(descriptor, 50, b"\0" * 1024).rstrip(b"\0"))  # F_GETPATH
    return os.readlink(f"/proc/self/fd/{descriptor}")
