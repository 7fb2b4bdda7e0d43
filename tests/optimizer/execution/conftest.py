"""Projects to run and what is left of them."""

from __future__ import annotations

import hashlib
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import Observations
from torchopt_cli.optimizer.execution.runner import RunSettings, ScriptVersion, run

Tree = dict[str, tuple[str, int, int]]


@pytest.fixture
def project(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Make a project of these files (text, dedented) and give its folder."""

    def make(files: Mapping[str, str]) -> Path:
        folder = tmp_path / "project"
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def tree() -> Callable[[Path], Tree]:
    """Everything below a folder: content or link target, mode and time of last change."""

    def read(folder: Path) -> Tree:
        found: Tree = {}
        for path in sorted(folder.rglob("*")):
            status = path.lstat()
            if path.is_symlink():
                content = os.readlink(path)
            else:
                content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            key = str(path.relative_to(folder))
            found[key] = (content, status.st_mode, status.st_mtime_ns)
        return found

    return read


@pytest.fixture
def observe(tmp_path: Path) -> Callable[..., Observations]:
    """Run ``train.py`` of a project; keywords are those of RunSettings, and ``args`` and ``overrides``."""
    runs = iter(range(1000))

    def go(
        folder: Path,
        *,
        args: tuple[str, ...] = (),
        overrides: Mapping[Path, str] | None = None,
        **settings: object,
    ) -> Observations:
        environment = {"OMP_NUM_THREADS": "1", **settings.pop("env", {})}  # type: ignore[dict-item]
        chosen = {
            "python": Path(sys.executable),
            "cwd": folder,
            "timeout_s": 120.0,
            "env": environment,
            **settings,
        }
        version = ScriptVersion(folder / "train.py", overrides or {}, args)
        return run(version, RunSettings(**chosen), tmp_path / f"run{next(runs)}")  # type: ignore[arg-type]

    return go


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process is there and more than a zombie that nobody reaped."""

    def check(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state != "Z"

    return check
