"""The wheel installs one package, and users' own ``optimizer`` and ``transforms`` do not meet ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from torchopt_cli.optimizer.cli import main

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # A copy, because setuptools writes its build folder beside the sources.
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, str(target), str(wheel)], check=True)
    return target


def test_the_wheel_holds_one_package(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"torchopt_cli"}


def test_every_source_file_is_in_the_wheel(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "optimizer", "transforms"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    expected = {f"torchopt_cli/{name}" for name in listed.stdout.split() if name.endswith(".py")}
    assert expected
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


def test_a_project_with_the_same_folder_names_is_rewritten(site: Path, tmp_path: Path) -> None:
    files = {
        "train.py": (
            "import torch\nfrom transforms.flip import flip\nimport optimizer\n\n"
            "scaler = torch.cuda.amp.GradScaler()\n"
        ),
        "transforms/flip.py": "def flip(x):\n    return x\n",
        "optimizer.py": "RATE = 0.1\n",
        "tests/data.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", str(site)])}
    result = subprocess.run(
        [sys.executable, str(site / "bin" / "torchopt"), "rewrite", "train.py", "--dry-run"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert '+scaler = torch.amp.GradScaler("cuda")' in result.stdout
    assert {p: (tmp_path / p).read_text() for p in files} == files


def test_the_hook_runs_a_command_of_ours_on_all_files_at_once() -> None:
    """pre-commit would share them out to processes, none of which sees every script that shares a module."""
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    (entry,) = re.findall(r"^  entry: torchopt (.*)$", hook, re.MULTILINE)
    assert main([*entry.split(), "--help"]) == 0
    assert "\n  require_serial: true\n" in hook
