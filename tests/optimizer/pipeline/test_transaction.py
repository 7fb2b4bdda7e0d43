from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.pipeline.transaction import apply_changes
from torchopt_cli.optimizer.rewriting.edits import FileEdit, NewFile, ReplaceExpression, Span
from torchopt_cli.optimizer.source import Sources
from torchopt_cli.transforms.base import Change

FIRST, SECOND = Span(1, 4, 1, 7), Span(2, 4, 2, 7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("a = 100\nb = 200\n")
    return tmp_path / "train.py"


def change(path: Path, *replacements: tuple[Span, str]) -> Change:
    edits = tuple(FileEdit(path, ReplaceExpression(span, code)) for span, code in replacements)
    message = ", ".join(code for _, code in replacements)
    return Change("test", Tier.EXACT, path, replacements[0][0], message, "a test", edits)


def test_changes_are_made_together(path: Path) -> None:
    changes = (change(path, (FIRST, "1")), change(path, (SECOND, "2")))
    done = apply_changes(Sources(), changes)
    assert (done.changes, done.conflicts, done.errors) == (changes, (), ())
    assert done.texts == {path: "a = 1\nb = 2\n"}


def test_no_changes_are_no_error(path: Path) -> None:
    done = apply_changes(Sources(), ())
    assert (done.changes, done.texts, done.errors) == ((), {}, ())


def test_of_two_that_conflict_the_first_is_made(path: Path) -> None:
    one, both = change(path, (FIRST, "1")), change(path, (FIRST, "3"), (SECOND, "2"))
    done = apply_changes(Sources(), (one, both))
    assert done.changes == (one,)
    assert done.texts == {path: "a = 1\nb = 200\n"}
    (conflict,) = done.conflicts
    wanted = f"(wanted: {both.message})"
    assert conflict.message == f"does not go together with another change of test {wanted}"
    assert done.errors == ()


def test_lines_stay_as_long_as_those_the_file_came_with(path: Path) -> None:
    path.write_text(f"a = 100  # {'-' * 90}\nb = f(200)\n")
    sources = Sources().with_texts({path: "a = 100\nb = f(200)\n"})
    call = f"f({', '.join(['1000'] * 15)})"
    done = apply_changes(sources, (change(path, (Span(2, 4, 2, 10), call)),))
    assert done.texts == {path: f"a = 100\nb = {call}\n"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [("1 +", "internal error"), ("nowhere", "undefined names: nowhere"), ("200", "change nothing")],
)
def test_one_that_cannot_stand_is_an_error(path: Path, code: str, reason: str) -> None:
    good, bad = change(path, (FIRST, "1")), change(path, (SECOND, code))
    done = apply_changes(Sources(), (bad,))
    assert (done.changes, done.texts, len(done.errors)) == ((), {}, 1)
    assert reason in done.errors[0].message
    if reason != "change nothing":  # beside another change it is not noticed, and does no harm
        together = apply_changes(Sources(), (bad, good))
        assert (together.changes, len(together.errors)) == ((good,), 1)


def test_a_file_that_cannot_be_read_is_an_error_of_the_change(path: Path) -> None:
    done = apply_changes(Sources(), (change(path.with_name("gone.py"), (FIRST, "1")),))
    assert "no such file" in done.errors[0].message


def test_new_files_come_with_their_change_and_never_over_another(path: Path) -> None:
    launcher = NewFile(path.with_name("launch.sh"), "torchrun train.py\n", executable=True)
    one = replace(change(path, (FIRST, "1")), files=(launcher,))
    assert apply_changes(Sources(), (one,)).texts == {
        path: "a = 1\nb = 200\n",
        launcher.path: launcher.text,
    }
    launcher.path.write_text("mine\n")
    refused = apply_changes(Sources(), (one,))
    assert (refused.changes, refused.texts) == ((), {})
    assert "there is a file launch.sh" in refused.errors[0].message
