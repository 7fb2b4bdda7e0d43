from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.tuning.configurations import Configuration
from torchopt_cli.optimizer.tuning.journal import Journal
from torchopt_cli.optimizer.tuning.report import summary
from torchopt_cli.optimizer.tuning.search import Outcome, Trial
from torchopt_cli.optimizer.tuning.tune import Tuned

KEY = {"text": "import torch\n", "arguments": ("--epochs", "1")}


def test_what_was_noted_is_there_when_resumed(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    journal = Journal(path, KEY, resume=False)
    assert journal.get({"pair": 1}) is None
    journal.note({"pair": 1, "best": "x"}, 0.25)
    journal.note({"profile": True}, {"bounds": {"compile": None}})
    again = Journal(path, KEY, resume=True)
    assert len(again) == 2
    assert again.get({"best": "x", "pair": 1}) == 0.25
    assert again.get({"profile": True}) == {"bounds": {"compile": None}}
    assert [entry.name for entry in tmp_path.iterdir()] == ["journal.json"]


def test_without_resume_it_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    Journal(path, KEY, resume=False).note({"pair": 1}, 0.25)
    assert len(Journal(path, KEY, resume=False)) == 0


def test_there_need_be_nothing_to_resume(tmp_path: Path) -> None:
    assert len(Journal(tmp_path / "journal.json", KEY, resume=True)) == 0


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    Journal(path, KEY, resume=False).note({"pair": 1}, 0.25)
    with pytest.raises(TorchoptError, match="another script, other arguments or another machine"):
        Journal(path, {**KEY, "text": "import torch  # changed\n"}, resume=True)


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"schema": 1})])
def test_what_is_no_journal(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.json"
    path.write_text(text)
    with pytest.raises(TorchoptError, match="is no journal of `torchopt tune`"):
        Journal(path, KEY, resume=True)


@pytest.mark.parametrize(("resumed", "told"), [(1, "1 measurement"), (3, "3 measurements")])
def test_what_was_taken_over_is_counted(resumed: int, told: str) -> None:
    trial = Trial(Configuration(), Configuration(frozenset({"a"})), Outcome.NOT_PAYING)
    tuned = Tuned((trial,), None, None, 60.0, resumed)
    assert summary(tuned)[0].endswith(f"(1.0 min, {told} taken over).")
