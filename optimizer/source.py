"""Reads Python files without losing a byte, writes several as one crash-safe transaction."""

from __future__ import annotations

import ast
import codecs
import os
import re
import shutil
import stat
import sys
import tokenize
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .errors import TorchoptError
from .syntax_tree import syntax_tree

_BINARY = getattr(os, "O_BINARY", 0)  # Windows only
_LINE_END = re.compile(rb"\r\n|\r|\n")
_PYTHON_2_MESSAGE = re.compile(
    r"Missing parentheses in call to '(print|exec)'|leading zeros in decimal integer literals"
)
_PYTHON_2_LINE = re.compile(
    r"^\s*(print\s+[^\s=(.,:]|print\s*>>|exec\s+[\"'\w]|raise\s+\w[\w.]*\s*,|except\s+[\w.]+\s*,\s*\w+\s*:)"
    r"|<>"
)
_ASYNC_ARGUMENT = re.compile(r"\basync\s*=(?!=)")
_IPYTHON_LINE = re.compile(r"^\s*(?:!|%{1,2}[A-Za-z])|^\s*\??[\w.]+\?+\s*$")
_NEWER_SYNTAX = (
    ((3, 11), re.compile(r"^\s*except\s*\*")),
    ((3, 12), re.compile(r"^\s*(?:type\s+\w+\s*[\[=]|(?:(?:async\s+)?def|class)\s+\w+\s*\[)")),
    ((3, 12), re.compile(r"""(?i)\b(?:f|rf|fr)['"]""")),
    ((3, 14), re.compile(r"""(?i)\b(?:t|rt|tr)['"]""")),
)


@dataclass(frozen=True)
class SourceFile:
    """A Python file as text, and all that is needed to turn the text back into the same bytes.

    ``text`` is without byte order mark and with the line ends of the file. ``on_disk`` holds the
    bytes that were read, None for a file that was not read but made; :func:`write_all` refuses to
    replace anything else. ``is_new`` says that there must be no such file yet when it is written, ``executable``
    that everybody may run it then.
    """

    path: Path
    text: str
    encoding: str = "utf-8"
    bom: bool = False
    on_disk: bytes | None = field(default=None, repr=False)
    is_new: bool = False
    executable: bool = False

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """Read ``path``, with the encoding its cookie declares (PEP 263).

        Raises TorchoptError where there is no such file, or its bytes are not such text.
        """
        return cls.of(path, _read_bytes(path))

    @classmethod
    def of(cls, path: Path, data: bytes) -> SourceFile:
        """The file ``path`` if these are its bytes. Raises TorchoptError where they are not Python's text."""
        if path.suffix == ".ipynb":  # its JSON often parses as Python
            message = (
                "a notebook, not a script: `jupyter nbconvert --to script` makes one of its cells"
            )
            raise TorchoptError(message, path)
        if (nul := data.find(b"\0")) >= 0:
            raise _at_byte(path, data, nul, "NUL byte: this is not Python source text")
        encoding = _declared_encoding(path, data)
        bom = data.startswith(codecs.BOM_UTF8)
        body = data[len(codecs.BOM_UTF8) :] if bom else data
        try:
            text = body.decode(encoding)
        except UnicodeDecodeError as error:
            reason = f"{error.reason}, byte 0x{body[error.start]:02x}"
            message = f"not valid {encoding} ({reason}); is its encoding declared?"
            raise _at_byte(path, body, error.start, message) from error
        except (LookupError, UnicodeError) as error:
            raise TorchoptError(f"cannot be decoded as {encoding}: {error}", path, 1) from error
        source = cls(path, text, encoding, bom, data)
        if source.encode() != data:
            message = (
                f"cannot be rewritten without loss: more than one way to write it in {encoding}"
            )
            raise TorchoptError(message, path, 1)
        return source

    def with_text(self, text: str) -> SourceFile:
        """The same file with other text."""
        return replace(self, text=text)

    @property
    def changed(self) -> bool:
        """Whether the text is no longer what was read."""
        return self.on_disk is None or self.encode() != self.on_disk

    def encode(self) -> bytes:
        """The bytes of the file; exactly those read, when the text is the one read."""
        try:
            body = self.text.encode(self.encoding)
        except UnicodeEncodeError as error:
            before = self.text[: error.start].encode(self.encoding)
            character = self.text[error.start]
            message = f"{character!r} cannot be written in this file's encoding, {self.encoding}"
            raise _at_byte(self.path, before, len(before), message) from error
        return codecs.BOM_UTF8 + body if self.bom else body


def parse(source: SourceFile) -> ast.Module:
    """The syntax tree of ``source``.

    Raises TorchoptError, with line and column, where Python would not run it.
    """
    try:
        tree = syntax_tree(source.text, str(source.path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's code
            # Some of what Python does not run has a tree: `return` outside of a function.
            compile(tree, str(source.path), "exec", dont_inherit=True)
        return tree
    except SyntaxError as error:
        row = _row(source.text, error.lineno or 1)
        column = max(error.offset or 1, 1)
        if isinstance(error, IndentationError):  # points anywhere, depending on Python's version
            column = len(row) - len(row.lstrip()) + 1
        message = _explain(error, row)
        raise TorchoptError(message, source.path, error.lineno or 1, column) from error
    except (RecursionError, MemoryError) as error:
        raise TorchoptError("too deeply nested to be parsed", source.path, 1) from error
    except ValueError as error:
        raise TorchoptError(f"cannot be parsed: {error}", source.path, 1) from error


def _row(text: str, line: int) -> str:
    rows = re.split(r"\r\n|\r|\n", text)
    return rows[line - 1] if line <= len(rows) else ""


def _explain(error: SyntaxError, row: str) -> str:
    if _ASYNC_ARGUMENT.search(row):
        return "`async` is a keyword since Python 3.7, no argument; it is `non_blocking` now"
    if _PYTHON_2_MESSAGE.match(error.msg) or _PYTHON_2_LINE.search(row):
        return f"this looks like Python 2, only Python 3 can be rewritten ({error.msg})"
    if _IPYTHON_LINE.search(row):
        return f"this is IPython, not Python: comment it out ({error.msg})"
    if any(sys.version_info < version and syntax.search(row) for version, syntax in _NEWER_SYNTAX):
        ours = "{}.{}".format(*sys.version_info)
        hint = f"torchopt runs under Python {ours}: install it under the script's if that is newer"
        return f"syntax error: {error.msg} ({hint})"
    return f"syntax error: {error.msg}"


@dataclass(frozen=True)
class Sources:
    """The current text of a project's files: what is on disk, and what was rewritten since.

    Immutable: :meth:`with_texts` gives a new value. What was read from disk is shared between them
    all, and a file is one file however its path is spelt.
    """

    _disk: dict[str, SourceFile] = field(default_factory=dict[str, SourceFile], repr=False)
    _rewritten: Mapping[str, SourceFile] = field(default_factory=dict[str, SourceFile], repr=False)
    _real_paths: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    _listings: dict[Path, frozenset[str]] = field(
        default_factory=dict[Path, frozenset[str]], repr=False
    )

    def read(self, path: Path) -> SourceFile:
        """The file at ``path`` with its current text. Raises TorchoptError if it cannot be read."""
        key = self._key(path)
        if key in self._rewritten:
            return self._rewritten[key]
        if key not in self._disk:
            self._disk[key] = SourceFile.read(path)
        return self._disk[key]

    def original(self, path: Path) -> SourceFile:
        """The file at ``path`` as it was read; one that is made here as it is. Raises TorchoptError as :meth:`read` does."""
        current = self.read(path)
        return self._disk.get(self._key(path), current)

    def exists(self, path: Path) -> bool:
        """Whether there is a file at ``path``, on disk or made here."""
        # Asked of many names that are no files: what is not there needs no look at where its links lead.
        if not self._rewritten and not os.path.isfile(path):
            return False
        key = self._key(path)
        return key in self._rewritten or key in self._disk or os.path.isfile(key)

    def has_module(self, folder: Path, name: str) -> bool:
        """Whether anything in ``folder`` could be imported as ``name``: a folder or a file, on disk or made here."""
        if folder not in self._listings:
            try:
                names = os.listdir(folder)
            except OSError:
                names = []
            self._listings[folder] = frozenset(listed.partition(".")[0] for listed in names)
        return name in self._listings[folder] or any(
            made.on_disk is None and made.path.parent == folder and made.path.stem == name
            for made in self._rewritten.values()
        )

    def modules_in(self, folder: Path) -> list[str]:
        """The names of the modules and packages in ``folder``, on disk."""
        try:
            paths = sorted(folder.iterdir())
        except OSError:
            return []
        return [
            path.stem
            for path in paths
            if path.stem.isidentifier()
            and path.stem != "__init__"
            and (path.suffix == ".py" or (path / "__init__.py").is_file())
        ]

    def with_texts(self, texts: Mapping[Path, str]) -> Sources:
        """These sources with other text in some files; a path without a file becomes a new one."""
        new = {
            self._key(path): self.read(path).with_text(text)
            if self.exists(path)
            else SourceFile(path, text)
            for path, text in texts.items()
        }
        return replace(self, _rewritten={**self._rewritten, **new})

    def _key(self, path: Path) -> str:
        spelt = str(path)
        if spelt not in self._real_paths:
            self._real_paths[spelt] = os.path.realpath(path)
        return self._real_paths[spelt]

    def changed(self) -> tuple[SourceFile, ...]:
        """The files whose text is not the one on disk, in the order they were first rewritten."""
        return tuple(source for source in self._rewritten.values() if source.changed)


def write_all(files: Iterable[SourceFile]) -> None:
    """Write ``files`` to disk as one transaction: all of them, or none.

    Each is written to a temporary file in its own folder and synced, then all are renamed into
    place; a failure on the way puts back those already renamed. Mode, extended attributes and
    (where permitted) owner are kept, and a symbolic link keeps pointing to its file, which is the
    one replaced. Raises TorchoptError, with nothing changed, when a file cannot be written or is
    no longer the one that was read.
    """
    writes: list[_Write] = []
    try:
        for source in files:
            with _reported(source.path):
                if source.changed:
                    writes.append(_Write(source, Path(os.path.realpath(source.path))))
        _refuse_twice_the_same(writes)
        for step in (_Write.stage, _Write.refuse_if_stale, _Write.commit, _Write.sync_folder):
            for write in writes:
                with _reported(write.source.path):
                    step(write)
    except BaseException as error:
        lost = [message for write in reversed(writes) if (message := write.roll_back())]
        if lost:
            raise TorchoptError("; ".join([str(error), *lost])) from error
        raise
    finally:
        for write in writes:
            write.clean_up()


@dataclass
class _Write:
    """One file of a transaction, and how far it has come."""

    source: SourceFile
    target: Path
    staged: Path | None = None
    backup: Path | None = None
    committed: bool = False

    def stage(self) -> None:
        """Write the new bytes, and keep the old file, beside the target."""
        data = self.source.encode()
        exists = self.target.exists()
        if exists and not self.target.is_file():
            raise TorchoptError("cannot be written: not a regular file", self.source.path)
        if exists and not os.access(self.target, os.W_OK):
            raise TorchoptError("cannot be written: the file is read-only", self.source.path)
        # An existing file's mode is copied below; until then nobody else may read the new one.
        mode = 0o600 if exists else (0o777 if self.source.executable else 0o666)
        staged = self._beside("new")
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
        self.staged = staged
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if exists:
            _copy_owner_and_mode(self.target, staged)
            self.backup = self._beside("old")
            try:
                os.link(self.target, self.backup)
            except OSError:  # a file system without hard links
                shutil.copy2(self.target, self.backup)

    def refuse_if_stale(self) -> None:
        if self.source.is_new and self.target.exists():
            raise TorchoptError("not written: there is a file of that name", self.source.path)
        if self.source.on_disk is None:
            return
        if not self.target.exists():
            raise TorchoptError("not written: the file is gone", self.source.path)
        if self.target.read_bytes() != self.source.on_disk:
            raise TorchoptError("not written: the file has changed on disk", self.source.path)

    def commit(self) -> None:
        assert self.staged is not None
        os.replace(self.staged, self.target)
        self.staged, self.committed = None, True

    def sync_folder(self) -> None:
        """Make the rename durable."""
        if os.name == "nt":  # Windows cannot open folders
            return
        descriptor = os.open(self.target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def roll_back(self) -> str | None:
        """Put the old file back; if that fails, leave it beside the new one and say where."""
        if not self.committed:
            return None
        try:
            if self.backup is None:
                os.unlink(self.target)
            else:
                os.replace(self.backup, self.target)
        except OSError as error:
            kept, self.backup = self.backup, None
            where = f"; its old content is in {kept}" if kept else ""
            return f"{self.target} could not be put back ({error.strerror or error}){where}"
        self.backup = None
        return None

    def clean_up(self) -> None:
        for leftover in (self.staged, self.backup):
            if leftover is not None:
                with suppress(OSError):
                    os.unlink(leftover)

    def _beside(self, kind: str) -> Path:
        return self.target.with_name(f".{self.target.name}.{os.urandom(4).hex()}.{kind}")


def _refuse_twice_the_same(writes: list[_Write]) -> None:
    seen: set[Path] = set()
    for write in writes:
        if write.target in seen:
            raise TorchoptError("cannot be written twice at once", write.source.path)
        seen.add(write.target)


def _copy_owner_and_mode(old: Path, new: Path) -> None:
    status = old.stat()
    if hasattr(os, "chown"):
        with suppress(PermissionError):  # only root may give files away
            os.chown(new, status.st_uid, status.st_gid)
    shutil.copystat(old, new)  # mode and extended attributes, but also the times
    os.chmod(new, stat.S_IMODE(status.st_mode))
    os.utime(new)


@contextmanager
def _reported(path: Path) -> Generator[None, None, None]:
    """Turns an OSError into the one line a user sees."""
    try:
        yield
    except OSError as error:
        raise TorchoptError(f"cannot be written: {error.strerror or error}", path) from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise TorchoptError("no such file", path) from None
    except IsADirectoryError:
        raise TorchoptError("is a directory, not a Python file", path) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TorchoptError(f"cannot be read: {reason}", path) from error


def _declared_encoding(path: Path, data: bytes) -> str:
    """The codec of ``data`` by its byte order mark and cookie; UTF-8 is always just ``utf-8``."""
    lines = (line + b"\n" for line in _LINE_END.split(data, maxsplit=2)[:2])
    try:
        encoding, _ = tokenize.detect_encoding(lambda: next(lines, b""))
        name = codecs.lookup(encoding).name
    except SyntaxError as error:
        line, column = _position(data, next((at for at, b in enumerate(data) if b > 127), 0))
        if "unknown encoding" in error.msg or data.startswith(codecs.BOM_UTF8):
            line, column = 1, 1
        told = error.msg
        if told.startswith("encoding problem"):  # of a mark and a cookie that contradict each other
            told = "it declares another encoding than UTF-8, whose byte order mark it begins with"
        raise TorchoptError(f"cannot be decoded: {told}", path, line, column) from error
    return "utf-8" if name in ("utf-8", "utf-8-sig") else encoding


def _position(data: bytes, offset: int) -> tuple[int, int]:
    """Line and column, 1-based, of a byte; columns count characters where the line is UTF-8."""
    before = data[:offset]
    rows = _LINE_END.split(before)
    return len(rows), len(rows[-1].decode("utf-8", errors="replace")) + 1


def _at_byte(path: Path, data: bytes, offset: int, message: str) -> TorchoptError:
    line, column = _position(data, offset)
    return TorchoptError(message, path, line, column)
