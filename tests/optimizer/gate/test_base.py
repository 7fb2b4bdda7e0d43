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
    assert version.absent == base.absent == frozenset()  # not in git yet: it may be there for both
    with pytest.raises(TorchoptError, match="v1 has no such file: nothing to compare with"):
        base.version_of(repository / "new.py", ())


def test_what_is_new_is_hidden_where_the_base_would_import_it(repository: Path) -> None:
    """Python prefers a package to a module of the same name."""
    for package in ("same", "gone"):
        (repository / f"{package}.py").unlink()
        (repository / package).mkdir()
        (repository / package / "__init__.py").write_text("y = 2\n")
    (repository / "extra.py").write_text("")
    (repository / "extra.csv").write_text("")
    git(repository, "add", "extra.py", "extra.csv", "same")
    root = repository.resolve()
    base = read_base("v1", repository)
    expected = {root / "same/__init__.py", root / "gone/__init__.py", root / "extra.py"}
    assert base.absent == expected
    assert base.version_of(root / "train.py", ()).absent == expected


def test_texts_are_decoded_as_python_and_checkouts_do(repository: Path) -> None:
    latin = "# -*- coding: latin-1 -*-\nname = 'café'\n"
    (repository / "latin.py").write_bytes(latin.encode("latin-1"))
    (repository / "marked.py").write_bytes(b"\xef\xbb\xbfx = 1\n")
    (repository / "rows.csv").write_bytes(b"\xef\xbb\xbfid\n")
    (repository / "big.txt").write_text("large\n")
    git(repository, "config", "filter.store.clean", "sed s/large/pointer/")
    git(repository, "config", "filter.store.smudge", "sed s/pointer/large/")
    (repository / ".gitattributes").write_text("big.txt filter=store\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    for name in ("latin.py", "marked.py", "rows.csv", "big.txt"):
        (repository / name).write_text("")
    root = repository.resolve()
    assert read_base("HEAD", repository).texts == {
        root / "latin.py": latin,
        root / "marked.py": "x = 1\n",
        root / "rows.csv": "\ufeffid\n",
        root / "big.txt": "large\n",
    }


def test_links_and_repositories_within_do_not_stand_in_for_each_other(repository: Path) -> None:
    (repository / "latest").symlink_to("train.py")
    (repository / "part").mkdir()
    git(repository / "part", "init", "-q")
    git(repository / "part", "commit", "-q", "--allow-empty", "-m", "one")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    git(repository / "part", "commit", "-q", "--allow-empty", "-m", "two")
    for name, target in {"latest": "same.py", "gone.py": "same.py"}.items():
        (repository / name).unlink()
        (repository / name).symlink_to(target)
    base, root = read_base("HEAD", repository), repository.resolve()
    assert base.texts == {}
    assert set(base.unreadable) == {root / "latest", root / "gone.py", root / "part"}


def test_a_script_that_the_commit_has_not_as_text(repository: Path) -> None:
    (repository / "train.py").write_bytes(b"\xff")
    git(repository, "commit", "-qam", "broken")
    (repository / "train.py").write_text("lr = 0.1\n")
    with pytest.raises(TorchoptError, match="what HEAD has of it is no Python text"):
        read_base("HEAD", repository).version_of(repository / "train.py", ())


def test_a_commit_that_a_shallow_clone_lacks(repository: Path, tmp_path: Path) -> None:
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "clone")
    with pytest.raises(
        TorchoptError, match=r"no such commit here: HEAD~1 \(of this shallow clone; "
    ):
        read_base("HEAD~1", tmp_path / "clone")


@pytest.mark.parametrize("name", ["nowhere", "HEAD:train.py", "v1^{tree}"])
def test_what_is_no_commit(repository: Path, name: str) -> None:
    with pytest.raises(TorchoptError) as raised:
        read_base(name, repository)
    assert str(raised.value) == f"--base: no such commit here: {name}"


def test_where_there_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(TorchoptError, match=r"^--base: .*not a git repository"):
        read_base("HEAD", tmp_path)
