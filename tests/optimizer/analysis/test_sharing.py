"""Other files that use a script's own modules are found, wherever in the project they are."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.analysis import understand
from torchopt_cli.optimizer.analysis.program.sharing import other_importer, other_user
from torchopt_cli.optimizer.source import Sources

PROJECT = {
    "pyproject.toml": "",
    "pkg/__init__.py": "",
    "pkg/engine.py": "def train(): pass\n",
    "tools/train.py": "from pkg.engine import train\ntrain()\n",
}


@pytest.fixture
def importer(tmp_path: Path) -> Callable[[dict[str, str]], str | None]:
    """The other file that imports ``pkg/engine.py`` of a project, beside which ``files`` lie."""

    def find(files: dict[str, str]) -> str | None:
        for name, content in {**PROJECT, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        project = understand(tmp_path / "tools" / "train.py", Sources()).project
        (engine,) = (module for module in project.modules if module.name == "pkg.engine")
        found = other_importer(project, engine)
        return None if found is None else found.relative_to(tmp_path).as_posix()

    return find


@pytest.mark.parametrize(
    "path",
    ["tools/test.py", "pkg/cli.py", "run.py", "demo/deep/run.py"],
)
def test_in_any_folder_of_the_project(importer: Callable[..., str | None], path: str) -> None:
    assert importer({path: "import os\nfrom pkg import engine\n"}) == path


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("demo/run.py", "import engine\n"),  # one of its own
        ("demo/run.py", "import pkg\nprint('engine')\n"),
        (".venv/run.py", "from pkg import engine\n"),
        ("env/run.py", "from pkg import engine\n"),
    ],
)
def test_what_imports_something_else(
    importer: Callable[..., str | None], path: str, text: str
) -> None:
    assert importer({path: text, "env/pyvenv.cfg": ""}) is None


def test_modules_of_one_name_in_several_packages(tmp_path: Path) -> None:
    """``utils.py`` beside each of several scripts, as in a collection of tasks."""
    for task in ("adding", "pixels"):
        folder = tmp_path / "tasks" / task
        folder.mkdir(parents=True)
        (folder / "utils.py").write_text("def data(): pass\n")
        head = f"import sys\nsys.path.append('../../')\nfrom tasks.{task}.utils import data\n"
        (folder / "train.py").write_text(head + "data()\n")
    project = understand(tmp_path / "tasks" / "pixels" / "train.py", Sources()).project
    (utils,) = (m for m in project.modules if m.path.name == "utils.py")
    assert utils.name == "tasks.pixels.utils"
    assert other_importer(project, utils) is None


@pytest.mark.parametrize(
    ("start", "user"),
    [
        ("main()", "evaluate.py"),
        ("args = parser.parse_args()\n    validate(net)", "evaluate.py"),
        ("validate(net)", None),  # a self-test
        ("main", "evaluate.py"),
        ("other()", None),
        ("print('nothing to see')", None),
    ],
)
def test_a_file_that_is_a_script_itself(tmp_path: Path, start: str, user: str | None) -> None:
    text = f"""
from torch.utils.data import DataLoader
def validate(net):
    pass
def main():
    for x in DataLoader(files):
        validate(net)
def other():
    DataLoader(files)
if __name__ == "__main__":
    {start}
"""
    (tmp_path / "evaluate.py").write_text(text)
    (tmp_path / "train.py").write_text("from evaluate import validate\nvalidate(1)\n")
    project = understand(tmp_path / "train.py", Sources()).project
    (module,) = project.modules[1:]
    (validate,) = (n for n in module.tree.body if getattr(n, "name", None) == "validate")
    assert isinstance(validate, ast.FunctionDef)
    found = other_user(project, validate, module)
    assert (None if found is None else found.name) == user


BLOCKS = "class Block: pass\nclass Tail: pass\n"
NETS = "import blocks\nclass Net:\n    def make(self):\n        return blocks.Block(), self.Tail\n"


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("Block", "from nets import Net\n", True),
        ("Block", "import nets\nnets.Net()\n", True),
        ("Block", "from nets import other\n", False),
        ("Tail", "from nets import Net\n", False),
        ("Tail", "from blocks import Tail\n", True),
        ("Block", "from other_nets import Net\n", False),
    ],
)
def test_what_leads_to_a_definition_uses_it(
    tmp_path: Path, name: str, text: str, found: bool
) -> None:
    files = {
        "blocks.py": BLOCKS,
        "nets.py": NETS,
        "other_nets.py": NETS.replace("blocks", "layers"),
        "train.py": "from nets import Net\nNet()\n",
        "test.py": text,
    }
    for file, content in files.items():
        (tmp_path / file).write_text(content)
    project = understand(tmp_path / "train.py", Sources()).project
    (module,) = (module for module in project.modules if module.name == "blocks")
    (definition,) = (n for n in module.tree.body if getattr(n, "name", None) == name)
    assert isinstance(definition, ast.ClassDef)
    assert (other_user(project, definition, module) == tmp_path / "test.py") is found
