"""Projects to run and what is left of them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.limits import Limits
from torchopt_cli.optimizer.execution.observations import Observations
from torchopt_cli.optimizer.execution.overlay import Overlay, make_overlay
from torchopt_cli.optimizer.execution.probe.protection import CONFINED
from torchopt_cli.optimizer.execution.processes import Finished, run_bounded
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
def python(warm_python: Path) -> Path:
    """The interpreter of ``observe``."""
    return warm_python


@pytest.fixture
def observe(tmp_path: Path, python: Path) -> Callable[..., Observations]:
    """Run a script of a project; keywords are those of RunSettings, and ``entry``, ``args`` and ``overrides``.

    Tests of how a script starts ask for ``python=Path(sys.executable)``.
    """
    runs = iter(range(1000))

    def go(
        folder: Path,
        *,
        entry: str = "train.py",
        args: tuple[str, ...] = (),
        overrides: Mapping[Path, str] | None = None,
        **settings: object,
    ) -> Observations:
        environment = {"OMP_NUM_THREADS": "1", **settings.pop("env", {})}  # type: ignore[dict-item]
        chosen = {
            "python": python,
            "cwd": folder,
            "timeout_s": 120.0,
            "env": environment,
            **settings,
        }
        version = ScriptVersion(folder / entry, overrides or {}, args)
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


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., tuple[Overlay, Finished]]:
    """Run a script of a project in an overlay, by plain Python."""
    scratches = iter(range(100))

    def go(
        entry: Path,
        *args: str,
        overrides: Mapping[Path, str] | None = None,
        absent: Sequence[Path] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        **limits: float,
    ) -> tuple[Overlay, Finished]:
        number = next(scratches)
        temporary = tmp_path / f"temporary{number}"
        temporary.mkdir()
        overlay = make_overlay(
            tmp_path / f"scratch{number}",
            temporary,
            entry=entry,
            overrides=overrides or {},
            absent=absent,
            cwd=cwd or entry.parent,
            environment={**os.environ, **(env or {})},
        )
        finished = run_bounded(
            [sys.executable, str(overlay.entry), *args],
            cwd=overlay.cwd,
            env=overlay.environment,
            mark=overlay.mark,
            limits=Limits(**{"seconds": 120.0, **limits}),  # type: ignore[arg-type]
            folders=(overlay.scratch, temporary),
        )
        return overlay, finished

    return go


@pytest.fixture
def unconfined() -> dict[str, str]:
    """The environment in which the Python layers protect alone."""
    return {CONFINED: ""}


@pytest.fixture(scope="session")
def confined() -> dict[str, str]:
    """The environment in which the kernel protects, too; skips where it cannot."""
    code = (
        "from torchopt_cli.optimizer.execution.probe.landlock import confine; print(*confine([]))"
    )
    command = [sys.executable, "-c", code]
    if subprocess.run(command, capture_output=True, check=True).stdout.split()[0] != b"True":
        pytest.skip("this kernel has no Landlock")
    return {}


@pytest.fixture(params=["confined", "unconfined"])
def protection(request: pytest.FixtureRequest) -> dict[str, str]:
    """Both, one after the other."""
    return request.getfixturevalue(request.param)
