import os
from pathlib import Path

import pytest

from torchopt_cli.optimizer.discovery import Discovery, discover


def project(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def scripts(folder: Path, discovery: Discovery) -> list[str]:
    assert discovery.errors == ()
    return [str(path.relative_to(folder)) for path in discovery.scripts]


def test_named_files_are_taken_as_they_are(tmp_path: Path) -> None:
    project(tmp_path, {"b.py": "x = 1\n", "a": "import torch\n"})
    assert scripts(tmp_path, discover([tmp_path / "b.py", tmp_path / "a"])) == ["b.py", "a"]


def test_folders_are_searched(tmp_path: Path) -> None:
    project(
        tmp_path,
        {
            "train.py": "import torch\n",
            "sub/dir/eval.py": "from torch import nn\n",
            "plain.py": "x = 1\n",
            "notes.txt": "torch\n",
        },
    )
    assert scripts(tmp_path, discover([tmp_path])) == ["train.py", "sub/dir/eval.py"]


@pytest.mark.parametrize(
    "name",
    [
        ".git/x.py",
        ".hidden/x.py",
        ".x.py",
        "__pycache__/x.py",
        "node_modules/a/x.py",
        "lib/site-packages/x.py",
        "myenv/bin/x.py",
    ],
)
def test_what_is_not_the_users_own_is_left_out(tmp_path: Path, name: str) -> None:
    project(
        tmp_path, {"train.py": "import torch\n", "myenv/pyvenv.cfg": "", name: "import torch\n"}
    )
    assert scripts(tmp_path, discover([tmp_path])) == ["train.py"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    project(tmp_path, {"train.py": "import torch\n"})
    os.mkfifo(tmp_path / "pipe.py")
    assert scripts(tmp_path, discover([tmp_path])) == ["train.py"]


def test_a_folder_that_is_named_is_searched_whatever_it_is_called(tmp_path: Path) -> None:
    project(tmp_path, {".work/train.py": "import torch\n"})
    assert scripts(tmp_path, discover([tmp_path / ".work"])) == [".work/train.py"]


@pytest.mark.parametrize(
    "statement",
    [
        "import model",
        "import os, model as m",
        "from model import Net",
        "from . import model",
        "from .model import Net",
        "from . import (\n    data,\n    model,\n)",
        "if True:\n    from model import Net",
    ],
)
def test_what_is_imported_comes_after_what_imports_it(tmp_path: Path, statement: str) -> None:
    project(tmp_path, {"model.py": "import torch\n", "train.py": f"import torch\n{statement}\n"})
    assert scripts(tmp_path, discover([tmp_path])) == ["train.py", "model.py"]


def test_packages_are_followed_from_the_folder_given(tmp_path: Path) -> None:
    project(
        tmp_path,
        {
            "engine/__init__.py": "",
            "engine/loop.py": "import torch\nfrom lib.data import load\n",
            "lib/data.py": "import torch\n",
            "zmain.py": "import torch\nimport engine.loop\n",
        },
    )
    assert scripts(tmp_path, discover([tmp_path])) == ["zmain.py", "engine/loop.py", "lib/data.py"]


def test_a_script_without_torch_counts_when_it_imports_torch_code(tmp_path: Path) -> None:
    project(
        tmp_path,
        {
            "main.py": "from middle import run\nrun()\n",
            "middle.py": "from engine import run\n",
            "engine.py": "import torch\n",
            "other.py": "import middleware\n",
        },
    )
    assert scripts(tmp_path, discover([tmp_path]))[0] == "main.py"
    assert "other.py" not in scripts(tmp_path, discover([tmp_path]))


def test_files_importing_each_other_are_all_kept(tmp_path: Path) -> None:
    project(tmp_path, {"a.py": "import torch, b\n", "b.py": "import torch, a\n"})
    assert scripts(tmp_path, discover([tmp_path])) == ["a.py", "b.py"]


def test_a_file_is_found_once(tmp_path: Path) -> None:
    project(tmp_path, {"train.py": "import torch\n"})
    (tmp_path / "link.py").symlink_to("train.py")
    assert len(discover([tmp_path, tmp_path / "train.py", tmp_path]).scripts) == 1


def test_missing_and_empty_paths_are_errors_and_the_rest_goes_on(tmp_path: Path) -> None:
    project(tmp_path, {"empty/readme.txt": "torch\n", "train.py": "import torch\n"})
    discovery = discover([tmp_path / "nowhere.py", tmp_path / "empty", tmp_path / "train.py"])
    assert discovery.scripts == (tmp_path / "train.py",)
    assert [str(error) for error in discovery.errors] == [
        f"{tmp_path}/nowhere.py: no such file or folder",
        f"{tmp_path}/empty: no Python file in this folder",
    ]


def test_a_file_that_is_no_text_is_left_to_the_reader_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_bytes("import torch\n".encode("utf-16"))
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\nimport torch\n")
    assert scripts(tmp_path, discover([tmp_path])) == ["latin.py", "wide.py"]
