from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.execution.script_versions import beside, by_torchrun, original_version

ARGS = ("--epochs", "1")


def write(folder: Path, files: Mapping[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    first, second = list(files)[:2]
    return folder / first, folder / second


def test_in_the_same_folder_it_takes_the_place_of_the_original(tmp_path: Path) -> None:
    original, rewritten = write(
        tmp_path, {"train.py": "import model\n", "fast.py": "import model  # 2\n", "model.py": ""}
    )
    expected = ScriptVersion(
        original, {original: "import model  # 2\n"}, ARGS, brought_by=rewritten
    )
    assert beside(original, rewritten, ARGS) == expected


@pytest.mark.parametrize("text", ["from train import Net\n", "import model\n"])
def test_unless_it_imports_the_original(tmp_path: Path, text: str) -> None:
    files = {"train.py": "x = 1\n", "fast.py": text, "model.py": "from train import Net\n"}
    original, rewritten = write(tmp_path, files)
    assert beside(original, rewritten, ARGS) == ScriptVersion(rewritten, {}, ARGS)


def test_the_original_itself_runs_where_it_is(tmp_path: Path) -> None:
    original, _ = write(tmp_path, {"train.py": "x = 1\n", "other.py": ""})
    assert beside(original, original, ARGS) == ScriptVersion(original, {}, ARGS)


def test_a_lone_copy_takes_the_place_of_the_original(tmp_path: Path) -> None:
    original, rewritten = write(
        tmp_path,
        {"a/train.py": "import model\n", "b/fast.py": "import model  # 2\n", "a/model.py": ""},
    )
    expected = ScriptVersion(
        original, {original: "import model  # 2\n"}, ARGS, brought_by=rewritten
    )
    assert beside(original, rewritten, ARGS) == expected


def test_so_does_a_script_that_imports_nothing_of_its_own(tmp_path: Path) -> None:
    original, rewritten = write(
        tmp_path, {"a/train.py": "import os\n", "b/fast.py": "import sys\n"}
    )
    expected = ScriptVersion(original, {original: "import sys\n"}, ARGS, brought_by=rewritten)
    assert beside(original, rewritten, ARGS) == expected


def test_a_copy_of_the_whole_project_runs_where_it_is(tmp_path: Path) -> None:
    modules = {f"{folder}/lib/{name}.py": "" for folder in "ab" for name in ("__init__", "model")}
    scripts = {"a/train.py": "from lib import model\n", "b/train.py": "from lib.model import Net\n"}
    original, rewritten = write(tmp_path, {**scripts, **modules})
    assert beside(original, rewritten, ARGS) == ScriptVersion(
        rewritten, {}, ARGS, written_in=original.parent
    )


def test_modules_only_the_rewritten_script_has_are_found(tmp_path: Path) -> None:
    original, rewritten = write(
        tmp_path, {"a/train.py": "x = 1\n", "b/train.py": "import fast\n", "b/fast.py": ""}
    )
    assert beside(original, rewritten, ARGS) == ScriptVersion(
        rewritten, {}, ARGS, written_in=original.parent
    )


def test_a_part_of_the_project_replaces_that_part(tmp_path: Path) -> None:
    original, rewritten = write(
        tmp_path,
        {
            "a/train.py": "import model, data\n",
            "b/train.py": "import model, data  # 2\n",
            "a/model.py": "x = 1\n",
            "a/data.py": "x = 1\n",
            "b/model.py": "x = 2\n",
        },
    )
    expected = {original: "import model, data  # 2\n", original.with_name("model.py"): "x = 2\n"}
    version = ScriptVersion(original, expected, ARGS, brought_by=rewritten)
    assert beside(original, rewritten, ARGS) == version


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    original, rewritten = write(tmp_path, {"a/train.py": "x = 1\n", "b/fast.py": "def f(:\n"})
    with pytest.raises(TorchoptError, match=r"fast\.py:1"):
        beside(original, rewritten, ARGS)


JOINS = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


def test_an_original_for_several_processes_is_started_by_torchrun(tmp_path: Path) -> None:
    several, one = write(tmp_path, {"several.py": JOINS, "one.py": "import torch\n"})
    assert original_version(several, ARGS, 3) == ScriptVersion(several, args=ARGS, processes=3)
    assert original_version(one, ARGS, 3) == ScriptVersion(one, args=ARGS)
    assert original_version(several, ARGS) == ScriptVersion(several, args=ARGS)


def test_the_texts_of_a_version_tell_how_it_is_started(tmp_path: Path) -> None:
    one, _ = write(tmp_path, {"one.py": "import torch\n", "two.py": ""})
    assert by_torchrun(ScriptVersion(one, {one: JOINS}), 2).processes == 2
