from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.pipeline.diff_paths import DiffPaths
from torchopt_cli.optimizer.pipeline.report import FileReport, to_diff, to_json, to_text
from torchopt_cli.optimizer.pipeline.result import (
    AppliedChange,
    GivenAdvice,
    RewrittenFile,
    SkippedChange,
)
from torchopt_cli.optimizer.rewriting.attribution import Provenance
from torchopt_cli.optimizer.source import SourceFile

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "rewrite.schema.json").read_text())
EXAMPLE = Path(__file__).parents[3] / "docs" / "json.md"
PATH = Path("train.py")
CHANGE = AppliedChange("pin-memory", Tier.EXACT, PATH, 7, 9, "pin_memory=True", "it is copied")
SKIP = SkippedChange("no-grad", PATH, 12, "it calls backward")

ADVICE = GivenAdvice("worker-memory", PATH, 20, "8 workers hold 2.0 GiB")


def plain(text: str, _: str) -> str:
    return text


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_text_tells_what_was_done_once_and_what_was_left() -> None:
    text = to_text([FileReport(PATH, True, (CHANGE, CHANGE), (SKIP,))], True, plain)
    assert text.splitlines() == [
        "train.py:7 pin-memory [exact] pin_memory=True; it is copied",
        "",
        "Left alone:",
        "train.py:12 no-grad: it calls backward",
        "",
        "1 file rewritten: 1 change; 1 place left alone.",
    ]


def test_text_without_changes() -> None:
    assert to_text([], False, plain) == "Nothing to rewrite.\n"
    assert to_text([FileReport(PATH, skips=(SKIP, SKIP))], False, plain).splitlines()[-1] == (
        "Nothing to rewrite; 2 places left alone."
    )
    assert to_text([FileReport(PATH, skips=(SKIP,))], False, plain, trains=False).endswith(
        "\nNothing to rewrite: no training step is seen; 1 place left alone.\n"
    )


def test_text_tells_advice_under_its_own_title() -> None:
    report = FileReport(PATH, skips=(SKIP,), advice=(ADVICE,))
    assert to_text([report], False, plain).splitlines() == [
        "Left alone:",
        "train.py:12 no-grad: it calls backward",
        "",
        "Advice:",
        "train.py:20 worker-memory: 8 workers hold 2.0 GiB",
        "",
        "Nothing to rewrite; 1 place left alone.",
    ]


def test_text_counts_every_file_a_change_edits() -> None:
    reports = [FileReport(PATH, True, (CHANGE,)), FileReport(Path("model.py"), True)]
    assert to_text(reports, False, plain).endswith("\n2 files would be rewritten: 1 change.\n")


def test_colours_name_the_tier() -> None:
    def paint(text: str, colour: str) -> str:
        return f"<{colour}>{text}</>"

    change = replace(CHANGE, tier=Tier.NUMERIC)
    line = to_text([FileReport(PATH, True, (change,))], True, paint).splitlines()[0]
    assert line.startswith("<bold>train.py:7</> pin-memory <yellow>[numeric]</> ")


def test_json_holds_everything_and_fits_its_schema() -> None:
    error = TorchoptError("syntax error", Path("bad.py"), 3, 1)
    reports = [FileReport(PATH, True, (CHANGE,), (SKIP,), (ADVICE,)), FileReport.unreadable(error)]
    document = json.loads(to_json(reports))
    jsonschema.validate(document, SCHEMA)
    assert document["files"][0]["changes"][0] == {
        "transform": "pin-memory",
        "tier": "exact",
        "line": 7,
        "end_line": 9,
        "message": "pin_memory=True",
        "reason": "it is copied",
    }
    assert document["files"][0]["advice"] == [
        {"transform": "worker-memory", "line": 20, "message": "8 workers hold 2.0 GiB"}
    ]
    assert document["files"][1] == {
        "path": "bad.py",
        "created": False,
        "launch": None,
        "changes": [],
        "skips": [],
        "advice": [],
        "error": "3:1: syntax error",
    }


def test_a_new_file_is_told_apart_and_its_diff_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    text = "#!/bin/sh\nexec torchrun train.py\n"
    path = tmp_path / "launch.sh"
    source = SourceFile(path, "", is_new=True, executable=True)
    new = RewrittenFile(source, text, Provenance.of("").after(text, "ddp"))
    change = replace(CHANGE, launch="torchrun train.py")
    script = FileReport(PATH, True, (change,), launch=change.launch)
    reports = [script, FileReport.of(new)]
    files = json.loads(to_json(reports))["files"]
    assert [(f["created"], f["launch"]) for f in files] == [
        (False, "torchrun train.py"),
        (True, None),
    ]
    assert to_text(reports, True, plain).splitlines()[1:] == [
        "train.py is started with `torchrun train.py` from now on",
        "",
        "1 file rewritten, 1 file made: 1 change.",
    ]
    subprocess.run(
        ["git", "apply"], input=to_diff(new, DiffPaths(tmp_path, False), plain), check=True
    )
    assert path.read_text() == text
    assert os.access(path, os.X_OK)


def test_the_documented_example_fits_the_schema() -> None:
    example = EXAMPLE.read_text().split("```json\n")[1].split("```")[0]
    jsonschema.validate(json.loads(example), SCHEMA)


@pytest.mark.parametrize("key", ["version", "files"])
def test_the_schema_refuses_what_is_incomplete(key: str) -> None:
    document = json.loads(to_json([]))
    del document[key]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)
