from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import pytest

from torchopt_cli.optimizer import terminal
from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.terminal import (
    SignsOfLife,
    display_path,
    error_line,
    painter,
    path_from_here,
    progress_bar,
    reflowed,
    with_progress,
)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_paths_are_shown_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert display_path(tmp_path / "a" / "b.py") == "a/b.py"
    assert display_path(Path("./a/../b.py")) == "b.py"
    assert display_path(tmp_path.parent / "b.py") == os.path.join("..", "b.py")
    assert display_path(Path("/elsewhere/b.py")) == "/elsewhere/b.py"
    assert path_from_here(tmp_path / "a" / "b.py") == "a/b.py"
    assert path_from_here(tmp_path.parent / "b.py") == str(tmp_path.parent / "b.py")


def test_errors_name_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert error_line(TorchoptError("is bad", tmp_path / "x.py", 3, 4)) == "x.py:3:4: is bad"
    assert error_line(TorchoptError("--tier: no")) == "torchopt: --tier: no"


def test_a_terminal_gets_colour() -> None:
    assert painter(Screen())("x", "green") == "\x1b[32mx\x1b[0m"
    assert painter(Screen())("x", "") == "x"


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_can_refuse_colour(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert painter(Screen())("x", "green") == "x"


def test_a_file_gets_no_colour() -> None:
    assert painter(io.StringIO())("x", "green") == "x"


@pytest.mark.parametrize(("delay", "shown"), [(0.0, True), (3600.0, False)])
def test_a_bar_is_shown_once_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, delay: float, shown: bool
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "_SECONDS_BEFORE_PROGRESS", delay)
    assert list(with_progress(range(50), "Rewriting")) == list(range(50))
    assert ("Rewriting" in screen.getvalue()) == shown


def test_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(terminal, "_SECONDS_BEFORE_PROGRESS", 0.0)
    assert list(with_progress(range(5), "Rewriting")) == list(range(5))
    assert stream.getvalue() == ""


def told_until(capsys: pytest.CaptureFixture[str], wanted: str, times: int) -> str:
    """What is told until ``wanted`` was, so many times."""
    told, until = "", time.monotonic() + 30
    while told.count(wanted) < times and time.monotonic() < until:
        time.sleep(0.005)
        told += capsys.readouterr().err
    return told


def test_what_takes_long_is_told_again_and_again_where_nobody_sees_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "_SECONDS_BETWEEN_LINES", 0.01)
    with progress_bar() as show:
        show(3, 13, "original, timed")
        line = "[  0.0 min] 3 of 13 done, now: original, timed\n"
        assert told_until(capsys, line, 2).count(line) >= 2
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_what_is_told_at_once_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with SignsOfLife() as signs:
        signs.tell("profiling")
        assert capsys.readouterr().err == "[  0.0 min] profiling\n"
    monkeypatch.setattr(terminal, "_SECONDS_BETWEEN_LINES", 0.01)
    with SignsOfLife() as signs:
        signs.tell("profiling")
        assert "[  0.0 min] still profiling\n" in told_until(capsys, "still profiling\n", 1)


def test_what_was_just_told_is_not_told_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    signs = SignsOfLife()

    def wait(seconds: float) -> bool:
        nonlocal now
        if now == 0.0:
            now = 24.0
            signs.tell("timing")
            now = 30.0
        else:
            now += seconds
        return now > 60.0

    monkeypatch.setattr(signs._over, "wait", wait)
    signs._go_on_telling()
    assert capsys.readouterr().err.splitlines() == [
        "[  0.4 min] timing",
        "[  0.9 min] still timing",
    ]


def test_paragraphs_fit_the_terminal_and_lists_stay() -> None:
    text = "One two three\nfour five six seven.\n\n- a list\n  goes on\n\n    code = 1"
    told = "One two three four\nfive six seven.\n\n- a list\n  goes on\n\n    code = 1"
    assert reflowed(text, 20) == told
    assert reflowed(text, None) == text
