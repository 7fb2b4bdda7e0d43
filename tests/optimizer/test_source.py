from __future__ import annotations

import ast
import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchopt_cli.optimizer import source as source_module
from torchopt_cli.optimizer.errors import ExitCode, TorchoptError
from torchopt_cli.optimizer.source import SourceFile, Sources, parse, write_all

ENCODINGS = ("utf-8", "latin-1", "cp1252", "koi8-r", "shift_jis", "euc-kr", "gbk", "iso8859-15")


def read_bytes(folder: Path, data: bytes) -> SourceFile:
    path = folder / "script.py"
    path.write_bytes(data)
    return SourceFile.read(path)


# Reading


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"x = 1",
        b"x = 1\r\ny = 2\r\n",
        b"x = 1\ry = 2\r",
        b"x = 1\ny = 2\r\nz = 3\rw = 4",
        b"if x:\n\ty = 1 \t\n\x0c\nz = 2\n",
        b"\xef\xbb\xbfx = '\xc3\xa9'\n",
        b"\xef\xbb\xbf# coding: utf-8\nx = 1\n",
        b"# -*- coding: latin-1 -*-\nx = '\xe9'\r\n",
        b"#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\nx = '\x80'",
        b"x = '\xe2\x80\xa8\xc2\x85'  # line separators that end no line\n",
    ],
)
def test_bytes_survive_reading_and_encoding(tmp_path: Path, data: bytes) -> None:
    source = read_bytes(tmp_path, data)
    assert source.encode() == data
    assert not source.changed
    assert not source.text.startswith("\ufeff")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), encoding=st.sampled_from(ENCODINGS), bom=st.booleans())
def test_any_mix_of_encoding_and_line_ends_survives(
    tmp_path: Path, data: st.DataObject, encoding: str, bom: bool
) -> None:
    ambiguous = "\u3164\xa5\u203e"  # have no way back in the Korean and Japanese encodings
    characters = st.characters(codec=encoding, exclude_characters="\0\r\n" + ambiguous)
    lines = data.draw(st.lists(st.text(characters, max_size=8)))
    ends = data.draw(
        st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=len(lines), max_size=len(lines))
    )
    body = "".join(f"# {line}{end}" for line, end in zip(lines, ends, strict=True))
    text = f"# -*- coding: {encoding} -*-\n{body}" + data.draw(st.sampled_from(["", "\f", "x = 1"]))
    marked = bom and encoding == "utf-8"
    raw = (b"\xef\xbb\xbf" if marked else b"") + text.encode(encoding)
    source = read_bytes(tmp_path, raw)
    assert (source.text, source.bom) == (text, marked)
    assert source.encode() == raw


@pytest.mark.parametrize(
    ("data", "line", "column", "words"),
    [
        (b"x = 1\ny = \0\n", 2, 5, "NUL byte"),
        (b"\n\n\nx = 'caf\xe9'\n", 4, 9, "not valid utf-8"),
        (b"\n\n\nx = '\xc3\xa9\xe9'\n", 4, 7, "not valid utf-8"),
        (b"x = '\xe9'\n", 1, 6, "encoding"),
        (b"# coding: klingon\n", 1, 1, "unknown encoding: klingon"),
        (b"# coding: rot13\nk = 1\n", 1, None, "rot13"),
        (b"\xef\xbb\xbf# coding: latin-1\n", 1, 1, "another encoding than UTF-8"),
        ("x = 1\n".encode("utf-16"), 1, None, "NUL byte"),
        (b"# coding: utf-7\nx = '+AGE-'\n", 1, None, "without loss"),
    ],
)
def test_unreadable_bytes_are_one_line(
    tmp_path: Path, data: bytes, line: int, column: int | None, words: str
) -> None:
    with pytest.raises(TorchoptError) as caught:
        read_bytes(tmp_path, data)
    error = caught.value
    assert error.exit_code is ExitCode.USAGE
    assert error.line == line
    if column is not None:
        assert error.column == column
    assert words in str(error)
    assert "\n" not in str(error)
    assert str(error).startswith(str(tmp_path / "script.py"))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(TorchoptError, match="no such file"):
        SourceFile.read(tmp_path / "missing.py")
    with pytest.raises(TorchoptError, match="is a directory"):
        SourceFile.read(tmp_path)
    with pytest.raises(TorchoptError, match="cannot be read"):
        SourceFile.read(Path("a\0b.py"))


def test_text_that_the_encoding_lacks_is_refused_with_its_place(tmp_path: Path) -> None:
    source = read_bytes(tmp_path, b"# coding: latin-1\nx = 1\n")
    with pytest.raises(TorchoptError, match="cannot be written in this file's encoding") as caught:
        source.with_text("# coding: latin-1\nx = '\N{SNOWMAN}'\n").encode()
    assert (caught.value.line, caught.value.column) == (2, 6)


# Parsing


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("x = 1\ndef f(:\n", 2, 7, "syntax error"),
        ("if x:\ny = 1\n", 2, 1, "expected an indented block"),
        ("x = 1\n  y = 2\n", 2, 3, "unexpected indent"),
        ("print 'hi'\n", 1, 1, "Python 2"),
        ("x = 1\nprint >>f, x, y\nexec 'a'\n", 3, 1, "Python 2"),
        ("try:\n    pass\nexcept IOError, e:\n    pass\n", 3, 8, "Python 2"),
        ("raise ValueError, 'x'\n", 1, 17, "Python 2"),
        ("x = y <> z\n", 1, 7, "Python 2"),
        ("import os\nos.chmod(p, 0755)\n", 2, 13, "Python 2"),
        ("x = 1\nx.cuda(async=True)\n", 2, 8, "non_blocking"),
        ("y = x.cuda(\n    0,\n    async = True)\n", 3, 5, "non_blocking"),
        ("x = 'é' 'ü' é é\n", 1, 13, "syntax error"),
        ("x = 1\nreturn x\n", 2, 1, "syntax error: 'return' outside function"),
        ("def f():\n    from os import *\n", 2, 20, "syntax error: import * only allowed"),
        ("import torch\n!pip install -q timm\n", 2, 1, "IPython"),
        ("if True:\n    %matplotlib inline\n", 2, 5, "IPython"),
        ("torch.nn.Linear?\n", 1, 16, "IPython"),
    ],
)
def test_what_does_not_parse_is_told_with_its_place(
    text: str, line: int, column: int, words: str
) -> None:
    with pytest.raises(TorchoptError) as caught:
        parse(SourceFile(Path("train.py"), text))
    error = caught.value
    assert (error.line, error.column, error.exit_code) == (line, column, ExitCode.USAGE)
    assert words in str(error)
    assert "\n" not in str(error)


def test_python_3_errors_are_not_blamed_on_python_2() -> None:
    for text in ("print(1\n", "x = = 1\n", "raise ValueError(1) x\n", "x = y < > z\n"):
        with pytest.raises(TorchoptError) as caught:
            parse(SourceFile(Path("train.py"), text))
        assert "Python 2" not in str(caught.value)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python knows the syntax")
@pytest.mark.parametrize(
    "line",
    [
        "type Batch = tuple[int, int]",
        "def first[T](items: list[T]) -> T: return items[0]",
        "class Box[T]: pass",
        "print(f'{cfg['lr']}')",
    ],
)
def test_newer_syntax_is_told_from_mistakes(line: str) -> None:
    with pytest.raises(TorchoptError, match="torchopt runs under Python"):
        parse(SourceFile(Path("train.py"), f"{line}\n"))
    with pytest.raises(TorchoptError) as caught:
        parse(SourceFile(Path("train.py"), "x = = 1\n"))
    assert "torchopt runs under" not in str(caught.value)


def test_notebooks_are_told_from_scripts_without_a_training_step(tmp_path: Path) -> None:
    notebook = tmp_path / "train.ipynb"
    notebook.write_text('{"cells": [], "nbformat": 4}')
    with pytest.raises(TorchoptError, match="a notebook, not a script"):
        SourceFile.read(notebook)


def test_endless_nesting_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(TorchoptError, match=r"nested|parenthes"):
        parse(SourceFile(Path("deep.py"), "(" * 5000 + ")" * 5000))


def test_parsing_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    tree = parse(SourceFile(Path("train.py"), "x = '\\d' is 1\r\ny = 2\r"))
    assert isinstance(tree.body[1], ast.Assign)
    assert tree.body[1].lineno == 2
    assert not recwarn.list


# Sources


def test_sources_are_immutable_and_share_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    sources = Sources()
    first = sources.read(path)
    path.write_text("x = 2\n")
    later = sources.with_texts({path: "x = 3\n"})
    assert sources.read(path) is first
    assert later.read(path).text == "x = 3\n"
    assert later.read(path).on_disk == b"x = 1\n"
    assert sources.changed() == ()
    assert [source.text for source in later.changed()] == ["x = 3\n"]
    assert later.with_texts({path: "x = 1\n"}).changed() == ()


def test_a_file_is_one_file_however_it_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    path = tmp_path / "package" / "a.py"
    path.write_text("x = 1\n")
    (tmp_path / "link.py").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    sources = Sources().with_texts({Path("package/a.py"): "x = 2\n"})
    spellings = [path, Path("package/../package/a.py"), tmp_path / "link.py"]
    assert [sources.read(spelling).text for spelling in spellings] == ["x = 2\n"] * 3
    assert [source.path for source in sources.changed()] == [Path("package/a.py")]


def test_new_files_exist_once_they_have_a_text(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    sources = Sources()
    assert not sources.exists(path)
    assert not sources.exists(tmp_path)
    later = sources.with_texts({path: "x = 1\n"})
    assert later.exists(path)
    assert not sources.exists(path)
    write_all(later.changed())
    assert path.read_text() == "x = 1\n"


def test_modules_that_a_folder_may_hold(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    sources = Sources()
    found = [sources.has_module(tmp_path, name) for name in ("package", "a", "new")]
    assert found == [True, True, False]
    assert not sources.has_module(tmp_path / "nowhere", "a")
    later = sources.with_texts({tmp_path / "new.py": "x = 1\n", tmp_path / "a.py": "x = 2\n"})
    assert later.has_module(tmp_path, "new")
    assert not later.has_module(tmp_path / "package", "new")


def test_the_original_of_a_file(tmp_path: Path) -> None:
    path, new = tmp_path / "a.py", tmp_path / "new.py"
    path.write_text("x = 1\n")
    sources = Sources().with_texts({path: "x = 2\n", new: "y = 1\n"})
    assert sources.original(path).text == "x = 1\n"
    assert sources.original(new).text == "y = 1\n"


# Writing


def make(folder: Path, *names: str) -> list[SourceFile]:
    for name in names:
        (folder / name).write_text(f"# {name}\n")
    return [SourceFile.read(folder / name) for name in names]


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_only_what_has_changed_is_written(tmp_path: Path) -> None:
    a, b = make(tmp_path, "a.py", "b.py")
    before = (tmp_path / "a.py").stat()
    write_all([a, b.with_text("x = 1\n")])
    assert contents(tmp_path) == {"a.py": "# a.py\n", "b.py": "x = 1\n"}
    assert (tmp_path / "a.py").stat().st_ino == before.st_ino


def test_mode_is_kept_and_new_files_get_the_usual_one(tmp_path: Path) -> None:
    (source,) = make(tmp_path, "a.py")
    os.chmod(source.path, 0o754)
    write_all([source.with_text("x\n"), SourceFile(tmp_path / "new.py", "y\n")])
    assert stat.S_IMODE(source.path.stat().st_mode) == 0o754
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new.py").stat().st_mode) == 0o666 & ~umask


def test_symbolic_links_stay_links(tmp_path: Path) -> None:
    real, linked = tmp_path / "real", tmp_path / "linked"
    real.mkdir()
    linked.mkdir()
    make(real, "a.py")
    (linked / "a.py").symlink_to(Path("../real/a.py"))
    write_all([SourceFile.read(linked / "a.py").with_text("x\n")])
    assert (linked / "a.py").is_symlink()
    assert contents(real) == {"a.py": "x\n"}
    assert [path.name for path in linked.iterdir()] == ["a.py"]


def test_one_file_cannot_be_written_twice(tmp_path: Path) -> None:
    (source,) = make(tmp_path, "a.py")
    (tmp_path / "link.py").symlink_to(source.path)
    other = SourceFile.read(tmp_path / "link.py")
    with pytest.raises(TorchoptError, match="twice"):
        write_all([source.with_text("x\n"), other.with_text("y\n")])
    assert source.path.read_text() == "# a.py\n"


def test_a_file_changed_or_gone_since_it_was_read_is_refused(tmp_path: Path) -> None:
    a, b = make(tmp_path, "a.py", "b.py")
    b.path.write_text("# edited by hand\n")
    with pytest.raises(TorchoptError, match="has changed on disk"):
        write_all([a.with_text("x\n"), b.with_text("y\n")])
    assert contents(tmp_path) == {"a.py": "# a.py\n", "b.py": "# edited by hand\n"}
    b.path.unlink()
    with pytest.raises(TorchoptError, match="is gone"):
        write_all([a.with_text("x\n"), b.with_text("y\n")])
    assert contents(tmp_path) == {"a.py": "# a.py\n"}


def test_unwritable_text_leaves_everything(tmp_path: Path) -> None:
    a, b = make(tmp_path, "a.py", "b.py")
    b = SourceFile(b.path, "x = '\N{SNOWMAN}'\n", "latin-1", False, b.on_disk)
    with pytest.raises(TorchoptError, match="latin-1"):
        write_all([a.with_text("x\n"), b])
    assert contents(tmp_path) == {"a.py": "# a.py\n", "b.py": "# b.py\n"}


def test_read_only_and_special_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = make(tmp_path, "a.py", "b.py")
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("b.py"))
    with pytest.raises(TorchoptError, match=r"b\.py: cannot be written: the file is read-only"):
        write_all([a.with_text("x\n"), b.with_text("y\n")])
    assert contents(tmp_path) == {"a.py": "# a.py\n", "b.py": "# b.py\n"}
    (tmp_path / "folder").mkdir()
    with pytest.raises(TorchoptError, match="not a regular file"):
        write_all([SourceFile(tmp_path / "folder", "x\n")])


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = make(tmp_path, "a.py")

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(TorchoptError) as caught:
        write_all([source.with_text("x\n")])
    assert str(caught.value) == f"{source.path}: cannot be written: Permission denied"
    monkeypatch.undo()
    with pytest.raises(TorchoptError, match="cannot be written"):
        write_all([SourceFile(tmp_path / "missing" / "a.py", "x\n")])


def failing_at(
    real: Callable[..., object], call: int, error: BaseException
) -> Callable[..., object]:
    """``real``, but its ``call``-th call (from 0) raises ``error``."""
    calls = iter(range(1000))

    def function(*args: object, **kwargs: object) -> object:
        if next(calls) == call:
            raise error
        return real(*args, **kwargs)

    return function


@pytest.mark.parametrize("function", ["fsync", "replace", "link", "chmod", "utime", "open"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failure_at_any_step_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: BaseException
) -> None:
    failures = 0
    for call in range(20):
        for path in tmp_path.iterdir():
            path.unlink()
        files = make(tmp_path, "a.py", "b.py", "c.py")
        new = [source.with_text(f"x = {i}\n") for i, source in enumerate(files)]
        new.append(SourceFile(tmp_path / "new.py", "y = 1\n"))
        before = contents(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, function, failing_at(getattr(os, function), call, error))
            try:
                write_all(new)
            except (TorchoptError, KeyboardInterrupt):
                failures += 1
                assert contents(tmp_path) == before
            else:
                written = {s.path.name: s.text for s in new}
                assert contents(tmp_path) == written
    assert failures >= (0 if function == "link" and isinstance(error, OSError) else 3)


def test_what_cannot_be_put_back_is_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = make(tmp_path, "a.py", "b.py", "c.py")
    real, calls = os.replace, iter(range(100))

    def replace(*args: str) -> None:
        # The third rename fails, and so does putting back the second file.
        if next(calls) in (2, 3):
            raise OSError(errno.EIO, "Input/output error")
        real(*args)

    monkeypatch.setattr(source_module.os, "replace", replace)
    with pytest.raises(
        TorchoptError, match=r"b\.py could not be put back.*its old content is in"
    ) as e:
        write_all([source.with_text("x\n") for source in (a, b, c)])
    kept = Path(str(e.value).rpartition(" is in ")[2])
    assert kept.read_text() == "# b.py\n"
    kept.unlink()
    assert contents(tmp_path) == {"a.py": "# a.py\n", "b.py": "x\n", "c.py": "# c.py\n"}


def test_a_new_file_is_written_executable_and_never_over_another(tmp_path: Path) -> None:
    launcher = SourceFile(tmp_path / "launch.sh", "exit\n", is_new=True, executable=True)
    script = SourceFile(tmp_path / "train.py", "pass\n")
    write_all([launcher])
    assert os.access(launcher.path, os.X_OK)
    with pytest.raises(TorchoptError, match="there is a file of that name"):
        write_all([script, launcher])
    assert not script.path.exists()
