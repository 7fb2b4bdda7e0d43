from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.gate.base import read_base


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, "-C", str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    for name, text in {
        "train.py": "lr = 0.1\n",
        "lib/data.py": "size = 4\n",
        "gone.py": "x = 1\n",
        "same.py": "y = 1\n",
    }.items():
        (folder / name).write_text(text)
    (folder / "weights.bin").write_bytes(b"\xff\xfe\x00")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    git(folder, "tag", "v1")
    return folder


def test_the_texts_of_the_commit_stand_in_for_what_differs(repository: Path) -> None:
    (repository / "train.py").write_text("lr = 0.2\n")
    (repository / "lib/data.py").write_text("size = 8\n")
    git(repository, "commit", "-qam", "second")
    (repository / "lib/data.py").write_text("size = 16\n")  # not committed, and still what runs
    (repository / "gone.py").unlink()
    (repository / "weights.bin").write_bytes(b"\xff\xfe\x01")
    (repository / "new.py").write_text("z = 1\n")
    base = read_base("v1", repository / "lib")
    root = repository.resolve()
    assert base.texts == {
        root / "train.py": "lr = 0.1\n",
        root / "lib/data.py": "size = 4\n",
        root / "gone.py": "x = 1\n",
    }
    assert base.unreadable == (root / "weights.bin",)
    assert base.only_now == {root / "new.py"}
    version = base.version_of(repository / "train.py", ("--epochs", "1"))
    assert (version.entry, version.args) == (repository / "train.py", ("--epochs", "1"))
    assert version.overrides == base.texts
    with pytest.raises(TorchoptError, match="v1 has no such file: nothing to compare with"):
        base.version_of(repository / "new.py", ())


@pytest.mark.parametrize("name", ["nowhere", "HEAD:train.py", "v1^{tree}"])
def test_what_is_no_commit(repository: Path, name: str) -> None:
    with pytest.raises(TorchoptError) as raised:
        read_base(name, repository)
    assert str(raised.value) == f"--base: no such commit here: {name}"


def test_where_there_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(TorchoptError, match=r"^--base: .*not a git repository"):
        read_base("HEAD", tmp_path)
