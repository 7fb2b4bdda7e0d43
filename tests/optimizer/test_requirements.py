"""What a project's own files say about the torch it needs."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.config import Settings
from torchopt_cli.optimizer.environment import Environment
from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.requirements import required_torch, version_meant


@pytest.mark.parametrize(
    ("specification", "version"),
    [
        ("==2.3.1", (2, 3)),
        ("==1.9.0+cu111", (1, 9)),
        ("==2.4.*", (2, 4)),
        ("=2.5=py3.10_cuda11.8", (2, 5)),
        ("~=2.3.0", (2, 3)),
        ("~=2.3", (2, 3)),
        ("^2.4", (2, 4)),
        (">=2.3,<3", (2, 3)),
        (">=2.3, !=2.4", (2, 3)),
        ("<2.5", (2, 4)),
        ("<=2.5", (2, 5)),
        ("<2.2.1", (2, 2)),
        ("<2", (1, 13)),
        (">=1.7,<2", (1, 13)),
        ("^1.7", (1, 13)),
        ("==1.*", (1, 13)),
        (" @ https://download.pytorch.org/whl/cpu/torch-2.3.0-cp310-linux_x86_64.whl", (2, 3)),
        (">=1.7", None),
        (">=1.7,<3", None),
        ("==2.*", None),
        ("!=2.4", None),
        ("", None),
    ],
)
def test_version_meant(specification: str, version: tuple[int, int] | None) -> None:
    assert version_meant(specification) == version


@pytest.mark.parametrize(
    ("name", "text", "line", "version"),
    [
        ("requirements.txt", "numpy\ntorch==2.3.1\n", 2, (2, 3)),
        ("requirements-gpu.txt", "torch[opt] >= 2.4  # newest\n", 1, (2, 4)),
        ("requirements.txt", "torch==2.4; sys_platform == 'linux'\n", 1, (2, 4)),
        ("pyproject.toml", '[project]\ndependencies = [\n  "torch>=2.3",\n]\n', 3, (2, 3)),
        (
            "pyproject.toml",
            '[tool.poetry.dependencies]\ntorch = {version = "^2.5"}\n',
            2,
            (2, 5),
        ),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "2.5.0"\n', 2, (2, 5)),
        ("environment.yml", "dependencies:\n  - pytorch::pytorch=2.4.0\n", 2, (2, 4)),
        ("environment.yaml", "dependencies:\n- pip:\n  - torch==2.6.0\n", 3, (2, 6)),
        ("setup.py", "setup(\n    install_requires=['numpy', 'torch>=2.7'],\n)\n", 2, (2, 7)),
        ("setup.py", "REQUIRED = [\n    'torch<2.5',\n]\nsetup(x=REQUIRED)\n", 2, (2, 4)),
        ("setup.cfg", "[options]\ninstall_requires =\n    torch>=2.3\n", 3, (2, 3)),
        ("Pipfile", '[packages]\ntorch = "==2.3.0"\n', 2, (2, 3)),
    ],
)
def test_files(tmp_path: Path, name: str, text: str, line: int, version: tuple[int, int]) -> None:
    (tmp_path / name).write_text(text)
    folder = tmp_path / "src" / "deeper"
    folder.mkdir(parents=True)
    found = required_torch(folder)
    assert found is not None
    assert (found.path, found.line, found.version) == (tmp_path / name, line, version)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "torchvision==0.15\npytorch-lightning==1.9\n# torch==1.2\ntorch\n"),
        ("environment.yml", "dependencies:\n  - pytorch-cuda=11.8\n"),
        ("pyproject.toml", "[project\ntorch = 3\n"),
        ("setup.py", "print 'torch==1.2'\n"),
    ],
)
def test_nothing_is_said(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / name).write_text(text)
    assert required_torch(tmp_path) is None


def test_the_nearest_file_counts_and_the_repository_ends_the_search(tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "examples"
    inner.mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("torch==2.2\n")
    (tmp_path / "repository" / "requirements.txt").write_text("torch==2.5\n")
    found = required_torch(inner)
    assert found is not None
    assert found.version == (2, 5)
    (inner / ".git").mkdir()
    assert required_torch(inner) is None


def test_requirement_counts_where_no_torch_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.3\n")
    bare = Environment(Path("/python"), (3, 11), None)
    monkeypatch.setattr("torchopt_cli.optimizer.config.inspect_environment", lambda _: bare)
    assert Settings().options_in(tmp_path).torch_version == (2, 3)
    assert Settings(torch=(2, 6)).options_in(tmp_path).torch_version == (2, 6)
    installed = Environment(Path("/python"), (3, 11), (2, 7))
    monkeypatch.setattr("torchopt_cli.optimizer.config.inspect_environment", lambda _: installed)
    assert Settings().options_in(tmp_path).torch_version == (2, 7)


def test_requirement_too_old_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements.txt").write_text(
        dedent("""\
            numpy
            torch==1.7.1
        """)
    )
    bare = Environment(Path("/python"), (3, 11), None)
    monkeypatch.setattr("torchopt_cli.optimizer.config.inspect_environment", lambda _: bare)
    with pytest.raises(TorchoptError, match=r"requirements.txt:2: torch 1\.7 is older") as caught:
        Settings().options_in(tmp_path)
    assert "\n" not in str(caught.value)
    assert "--torch 2.2" in str(caught.value)
