"""Options whose default changes are not compared where they are printed; everything else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.files import compare_files
from torchopt_cli.optimizer.execution.observations import (
    Checkpoint,
    CheckpointEntry,
    Observations,
    Status,
    Timing,
    WrittenFile,
)
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.verifying.changed_defaults import changed_defaults, without_defaults

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--n-cpu", type=int, default=0)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--name")
"""


def run(stdout: str, entries: dict[str, CheckpointEntry] | None = None) -> Observations:
    checkpoints = (Checkpoint("a.pt", 1, entries),) if entries else ()
    return Observations(
        Path(),
        Status.COMPLETED,
        0,
        None,
        stdout,
        "",
        False,
        False,
        1,
        True,
        Timing(1.0),
        checkpoints=checkpoints,
    )


def test_only_options_with_another_default(tmp_path: Path) -> None:
    entry = tmp_path / "train.py"
    entry.write_text(SCRIPT)
    after = ScriptVersion(entry, {entry: SCRIPT.replace("default=0)", "default=min(8, 2))")})
    assert changed_defaults(ScriptVersion(entry), after) == {"n_cpu"}
    assert changed_defaults(ScriptVersion(entry), ScriptVersion(entry)) == frozenset()


@pytest.mark.parametrize(
    ("printed", "left"),
    [
        ("Namespace(n_cpu=0, lr=0.1)", "Namespace(n_cpu=<default>, lr=0.1)"),
        ("{'n_cpu': 0, 'lr': 0.1}", "{'n_cpu': <default>, 'lr': 0.1}"),
        ("n_cpu: 12\nlr: 0.1", "n_cpu: <default>\nlr: 0.1"),
        ("my_n_cpu=3 loss 0.25", "my_n_cpu=3 loss 0.25"),
    ],
)
def test_what_is_printed(printed: str, left: str) -> None:
    assert without_defaults(run(printed), {"n_cpu"}).stdout == left


def test_what_is_saved() -> None:
    saved = {
        "args/n_cpu": CheckpointEntry("int", value="0"),
        "args/lr": CheckpointEntry("float", value="0.1"),
        "n_cpu.weight": CheckpointEntry("tensor", (1,), "float32", "abc"),
    }
    (checkpoint,) = without_defaults(run("", saved), {"n_cpu"}).checkpoints
    assert checkpoint.entries["args/n_cpu"].value == "<default>"
    assert {k: e for k, e in checkpoint.entries.items() if k != "args/n_cpu"} == {
        k: e for k, e in saved.items() if k != "args/n_cpu"
    }


def test_what_is_written_to_a_file(tmp_path: Path) -> None:
    runs: list[Observations] = []
    for number in (0, 4):
        kept = f"{number}.txt"
        (tmp_path / kept).write_text(json.dumps({"n_cpu": number, "loss": 0.25}))
        files = (WrittenFile("config.json", 1, kept),)
        runs.append(replace(run(""), folder=tmp_path, files=files))
    assert compare_files(runs[0], runs[1], [], [], None)
    before, after = (without_defaults(one, {"n_cpu"}) for one in runs)
    assert not compare_files(before, after, [], [], None)


def test_nothing_is_touched_without_changed_defaults() -> None:
    printed = run("n_cpu=0")
    assert without_defaults(printed, frozenset()) is printed
