"""Versions in files of other names and folders: what they write by their own place, what their tracebacks name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import (
    Checkpoint,
    Observations,
    Status,
    WrittenFile,
)
from torchopt_cli.optimizer.execution.recorded import Timing
from torchopt_cli.optimizer.execution.told_places import told_in, written_in


@pytest.fixture
def run() -> Observations:
    return Observations(
        folder=Path("/runs/0"),
        status=Status.FAILED,
        exit_code=1,
        traceback='  File "/a/train.py", line 3\n  File "/a/train.pyx", line 4\n',
        stdout="",
        stderr='  File "/a/train.py", line 3\n',
        stdout_cut=False,
        stderr_cut=False,
        rounds=0,
        optimizer_seen=False,
        timing=Timing(total_seconds=1.0),
    )


def test_a_traceback_names_the_file_that_the_text_is_from(run: Observations) -> None:
    told = told_in(replace(run, ranks=(run,)), Path("/a/train.py"), Path("/a/fast.py"))
    assert told.traceback == '  File "/a/fast.py", line 3\n  File "/a/train.pyx", line 4\n'
    assert told.stderr == told.ranks[0].stderr == '  File "/a/fast.py", line 3\n'


@pytest.mark.parametrize(
    ("cwd", "path", "expected"),
    [
        ("/w", "b/out/log.csv", "a/out/log.csv"),
        ("/w", "out/log.csv", "out/log.csv"),
        ("/w", "bc/log.csv", "bc/log.csv"),
        ("/w/a", "/w/b/out/log.csv", "out/log.csv"),
        ("/x", "/w/b/out/log.csv", "/w/a/out/log.csv"),
        ("/w/b", "out/log.csv", "out/log.csv"),
        ("/w/b/sub", "/w/b/log.csv", "/w/b/log.csv"),
    ],
)
def test_what_is_written_beside_the_script(
    run: Observations, cwd: str, path: str, expected: str
) -> None:
    wrote = replace(
        run,
        files=(WrittenFile(path, 1),),
        checkpoints=(Checkpoint(path, 0, {}),),
        removed=(path,),
    )
    told = written_in(replace(wrote, ranks=(wrote,)), Path("/w/b"), Path("/w/a"), Path(cwd))
    for one in (told, *told.ranks):
        paths = [one.files[0].path, one.checkpoints[0].path, *one.removed]
        assert paths == [expected] * 3
