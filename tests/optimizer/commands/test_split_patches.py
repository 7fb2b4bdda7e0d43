from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.options import Options
from torchopt_cli.optimizer.rewriting.edits import NewFile
from torchopt_cli.transforms import registry
from torchopt_cli.transforms.base import Change, Skip

from .conftest import SlowToFast

Project = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
GIT = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="needs git")


class FastToFaster(SlowToFast):
    """Changes what slow-to-fast wrote."""

    name = "fast-to-faster"
    old, new = "fast", "faster"


class Launcher(SlowToFast):
    """Makes a file beside the script, once."""

    name = "launcher"
    old, new = "bold", "bolder"

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        path = script.entry.path.with_name("launch it.sh")
        for change in super().plan(script, options):
            assert isinstance(change, Change)
            yield replace(change, files=(NewFile(path, "#!/bin/sh\nexec true", executable=True),))


def use(monkeypatch: pytest.MonkeyPatch, *transforms: SlowToFast) -> None:
    monkeypatch.setattr(registry, "all_transforms", lambda: transforms)


def files_of(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Content and executability of what a project holds."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".patch" and ".git" not in path.parts
    }


def applied_in_order(folder: Path, patches: Path) -> list[str]:
    """Apply all ``patches`` at ``folder``; their names."""
    paths = sorted(patches.glob("*.patch"))
    for path in paths:
        subprocess.run(["git", "apply", str(path)], cwd=folder, check=True, env=GIT)
    return [path.name for path in paths]


def test_patches_make_the_rewrite_and_the_script_is_left_alone(
    project: Project, capsys: Capture
) -> None:
    folder = project({"train.py": "slow()\n", "sub/b c.py": "bold()\nslow()\n"})
    before = files_of(folder)
    command = ["rewrite", "--tier", "semantic", "."]
    assert main([*command, "--split-patches", "out/patches"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("2 files would be rewritten: 3 changes.\n")
    assert err == "note: 2 patches in out/patches, for `git apply` in the order of their numbers\n"
    assert files_of(folder) == before

    first = (folder / "out/patches/01-slow-to-fast.patch").read_text()
    assert first.startswith(
        "# sub/b c.py:11 slow-to-fast [exact] calls fast(); it is pure\n"
        "# train.py:10 slow-to-fast [exact] calls fast(); it is pure\n\n"
    )
    assert "bolder()\n" not in first.replace("def bolder()", "")
    names = applied_in_order(folder, folder / "out/patches")
    assert names == ["01-slow-to-fast.patch", "02-bold-to-bolder.patch"]
    patched = files_of(folder)
    for name, (data, _) in before.items():
        (folder / name).write_bytes(data)
    assert main(command) == 0
    assert files_of(folder) == patched != before


def test_bytes_modes_and_new_files_survive(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, SlowToFast(), Launcher(), FastToFaster())
    folder = project({})
    header = (
        "# coding: latin-1\r\nimport torch\r\n# \u00e4\r\ndef slow(): ...\r\ndef fast(): ...\r\n"
    )
    text = header + "def faster(): ...\r\ndef bold(): ...\r\ndef bolder(): ...\r\nbold()\r\nslow()"
    script = folder / "tr\u00e4in.py"
    script.write_bytes(text.encode("latin-1"))
    assert main(["rewrite", ".", "--split-patches", "patches"]) == 0
    assert files_of(folder) == {script.name: (text.encode("latin-1"), False)}
    assert applied_in_order(folder, folder / "patches") == [
        "01-slow-to-fast.patch",
        "02-launcher.patch",
        "03-fast-to-faster.patch",
    ]
    patched = files_of(folder)
    assert patched["launch it.sh"] == (b"#!/bin/sh\nexec true", True)
    assert patched[script.name][0].endswith(b"bolder()\r\nfaster()")
    script.write_bytes(text.encode("latin-1"))
    (folder / "launch it.sh").unlink()
    assert main(["rewrite", "."]) == 0
    assert files_of(folder) == patched


def test_paths_are_those_of_the_repository(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, SlowToFast(), Launcher())
    folder = project({"sub/train.py": "slow()\nbold()\n"})
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True, env=GIT)
    monkeypatch.chdir(folder / "sub")
    assert main(["rewrite", "train.py", "--split-patches", "../patches"]) == 0
    assert len(applied_in_order(folder, folder / "patches")) == 2
    assert (folder / "sub/train.py").read_text().endswith("\nfast()\nbolder()\n")
    assert (folder / "sub/launch it.sh").is_file()


BESIDE = {
    "scripts/train.py": "import sys\nsys.path.insert(0, '..')\nimport helpers\nslow()\nbold()\n",
    "helpers.py": "slow()\n",
}


@pytest.mark.parametrize("in_repository", [True, False])
@pytest.mark.parametrize("split", [True, False])
def test_files_beside_the_working_directory(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    in_repository: bool,
    split: bool,
) -> None:
    use(monkeypatch, SlowToFast(), Launcher())
    folder = project({f"project/{name}": text for name, text in BESIDE.items()}) / "project"
    if in_repository:
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True, env=GIT)
    before = files_of(folder)
    monkeypatch.chdir(folder / "scripts")
    if split:
        assert main(["rewrite", "train.py", "--split-patches", "../../patches"]) == 0
    else:
        assert main(["rewrite", "train.py", "--dry-run"]) == 0
    out, err = capfd.readouterr()
    assert "note: run `git apply` in .., which the paths are relative to\n" in err
    assert f"{Path('..', 'helpers.py')}:10 slow-to-fast" in out + err
    assert files_of(folder) == before
    if split:
        assert len(applied_in_order(folder, folder.parent / "patches")) == 2
    else:
        command = ["git", "apply", "--whitespace=nowarn"]
        subprocess.run(command, input=out.encode(), cwd=folder, check=True, env=GIT)
    patched = files_of(folder)
    for name, (data, _) in before.items():
        (folder / name).write_bytes(data)
    (folder / "scripts/launch it.sh").unlink()
    assert main(["rewrite", "train.py"]) == 0
    assert files_of(folder) == patched != before


def test_a_diff_with_a_new_file_applies_in_a_folder_of_the_repository(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, SlowToFast(), Launcher())
    folder = project({"sub/train.py": "slow()\nbold()\n", "sub/data.py": "slow()\n"})
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True, env=GIT)
    monkeypatch.chdir(folder / "sub")
    assert main(["rewrite", ".", "--dry-run"]) == 0
    out, err = capfd.readouterr()
    assert "git apply" not in err
    subprocess.run(["git", "apply"], input=out.encode(), check=True, env=GIT)
    patched = files_of(folder)
    assert patched["sub/launch it.sh"] == (b"#!/bin/sh\nexec true", True)
    assert patched["sub/data.py"][0].endswith(b"fast()\n")
    assert patched["sub/train.py"][0].endswith(b"fast()\nbolder()\n")


def test_what_was_in_the_folder_stays_and_is_told(project: Project, capsys: Capture) -> None:
    folder = project({"train.py": "slow()\n", "p/01-slow-to-fast.patch": "old\n"})
    (folder / "p/02-other.patch").write_text("other\n")
    (folder / "p/notes.txt").write_text("mine\n")
    for notes in (["p/01-slow-to-fast.patch is replaced"], []):
        assert main(["rewrite", "train.py", "--split-patches", "p"]) == 0
        assert capsys.readouterr().err.splitlines() == [
            "note: 1 patch in p, for `git apply` in the order of their numbers",
            *(f"note: {note}" for note in notes),
            "note: p/02-other.patch was there before and is none of these patches",
        ]
    assert (folder / "p/02-other.patch").read_text() == "other\n"
    assert (folder / "p/notes.txt").read_text() == "mine\n"


def test_nothing_is_written_when_there_is_nothing_to_write(
    project: Project, capsys: Capture
) -> None:
    folder = project({"done.py": "fast()\n", "train.py": "slow()\n"})
    assert main(["rewrite", "done.py", "--split-patches", "p"]) == 0
    assert main(["rewrite", "train.py", "--check", "--split-patches", "p"]) == 1
    assert "no patches are written: --check writes nothing" in capsys.readouterr().err
    assert main(["rewrite", "train.py", "-o", "x.py", "--split-patches", "p"]) == 2
    assert "does not go with --output" in capsys.readouterr().err
    assert not (folder / "p").exists()
    assert main(["rewrite", "train.py", "--split-patches", "done.py"]) == 2
    assert "done.py: --split-patches: cannot be made" in capsys.readouterr().err


def test_a_file_of_another_folder_is_patched_there(
    project: Project, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project({"train.py": "slow()\n", "other/done.py": "fast()\n"})
    monkeypatch.chdir(folder / "other")
    assert main(["rewrite", "../train.py", "--split-patches", "p"]) == 0
    assert "run `git apply` in .., which" in capsys.readouterr().err
    assert applied_in_order(folder, folder / "other/p") == ["01-slow-to-fast.patch"]
    assert (folder / "train.py").read_text().endswith("\nfast()\n")


def test_the_configuration_names_the_folder_from_its_own(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = '[tool.torchopt]\nsplit-patches = "patches"\n'
    folder = project({"pyproject.toml": toml, "sub/train.py": "slow()\n"})
    assert main(["rewrite", "sub/train.py"]) == 0
    assert applied_in_order(folder, folder / "patches") == ["01-slow-to-fast.patch"]
    assert (folder / "sub/train.py").read_text().endswith("\nfast()\n")
