"""Modules are found where a script has them looked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.analysis import understand
from torchopt_cli.optimizer.source import Sources


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The modules that ``tools/train.py`` with a text is found to import; ``files`` lie beside ``tools``."""

    def understood(text: str, files: dict[str, str], folder: str = ".") -> list[str]:
        for name, content in {"tools/train.py": text, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        monkeypatch.chdir(tmp_path / folder)
        found = understand(tmp_path / "tools" / "train.py", Sources())
        return [module.name for module in found.modules[1:]]

    return understood


@pytest.mark.parametrize(
    "addition",
    [
        "sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))",
        "sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..'))",
        "sys.path.insert(0, osp.join(osp.dirname(osp.realpath(__file__)), osp.pardir))",
        "sys.path += [str(Path(__file__).resolve().parents[1])]",
        "sys.path.extend([str(Path(__file__).absolute().parent.parent)])",
        "FILE = Path(__file__).resolve()\nROOT = FILE.parent / '..'\nsys.path.append(ROOT.as_posix())",
        "here = os.path.split(os.path.realpath(__file__))[0]\nsys.path.append(here + '/..')"
        "\nsys.path.append(os.path.join(here, '../'))",
        "def add_path(path):\n    if path not in sys.path:\n        sys.path.insert(0, path)\n"
        "add_path(os.path.join(os.path.dirname(__file__), '..'))",
        "sys.path.append('.')",
        "sys.path.append('..')",
        "sys.path.append(os.getcwd())",
    ],
)
def test_what_a_script_adds_to_its_search_path(
    imported: Callable[..., list[str]], addition: str
) -> None:
    text = f"import os, sys\nimport os.path as osp\nfrom pathlib import Path\n{addition}\nimport lib.data\n"
    assert imported(text, {"lib/data.py": ""}) == ["lib.data"]


def test_an_imported_file_may_add_them(imported: Callable[..., list[str]]) -> None:
    text = "import _init_paths\nimport engine\nfrom data import loaders\n"
    paths = "import os.path as osp\nimport sys\nsys.path.insert(0, osp.join(osp.dirname(__file__), '..', 'lib'))\n"
    files = {"tools/_init_paths.py": paths, "lib/engine.py": "", "lib/data/loaders.py": ""}
    assert imported(text, files) == ["_init_paths", "engine", "data.loaders"]


@pytest.mark.parametrize(
    "addition",
    [
        "sys.path.append('/lib')",
        "sys.path.append(os.environ['LIB'])",
        "sys.path.append(f'{root}/lib')",
        "other.path.append('..')",
        "ROOT = '..'\nROOT = find_root()\nsys.path.append(ROOT)",
        "loop = loop\nsys.path.append(loop)",
        "",
    ],
)
def test_a_path_that_is_not_understood_adds_nothing(
    imported: Callable[..., list[str]], addition: str
) -> None:
    files = {"lib/data.py": "", "engine.py": ""}
    assert not imported(f"import os, sys\n{addition}\nimport engine\n", files)


@pytest.mark.parametrize("mark", ["setup.py", "pyproject.toml", ".git"])
@pytest.mark.parametrize("folder", ["", "src/"])
def test_a_script_of_a_project_imports_its_package(
    imported: Callable[..., list[str]], mark: str, folder: str
) -> None:
    files = {
        mark: "",
        f"{folder}pkg/__init__.py": "",
        f"{folder}pkg/nets.py": "from .layers import Block",
        f"{folder}pkg/layers.py": "",
    }
    assert imported("from pkg.nets import Net\n", files, "tools") == [
        "pkg",
        "pkg.nets",
        "pkg.layers",
    ]


@pytest.mark.parametrize(
    "files",
    [
        {"pkg/__init__.py": "", "pkg/nets.py": ""},  # not a project
        {"setup.py": "", "pkg/other.py": ""},
        {"setup.py": "", "tools/.git": "", "pkg/__init__.py": "", "pkg/nets.py": ""},  # another's
        {"setup.py": "", "pkg/__init__.py": "", **{f"pkg/nets{n}.py": "" for n in range(150)}},
    ],
)
def test_libraries_of_a_project_are_not_read(
    imported: Callable[..., list[str]], files: dict[str, str]
) -> None:
    assert not imported("from pkg.nets import Net\nimport pkg.nets0\n", files)


def test_packages_need_no_init(imported: Callable[..., list[str]]) -> None:
    files = {".git": "", "pkg/nets.py": "", "config.py": ""}
    assert imported("import config\nfrom pkg import nets\n", files) == ["config", "pkg.nets"]


def test_a_library_is_known_by_its_name_in_its_own_repository(
    imported: Callable[..., list[str]],
) -> None:
    files = {"setup.py": "", "src/transformers/__init__.py": ""}
    assert not imported("import transformers\n", files)


def test_a_module_of_two_names_is_read_once(imported: Callable[..., list[str]]) -> None:
    text = "import sys\nsys.path.append('.')\nimport engine\nfrom tools import engine as again\n"
    assert imported(text, {"tools/engine.py": ""}) == ["engine"]
