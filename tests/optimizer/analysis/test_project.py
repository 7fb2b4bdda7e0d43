"""First-party modules are the ones Python would import from the project."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.analysis import understand
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.source import Sources

Script = Callable[..., TrainingScript]


def names(found: TrainingScript) -> list[str]:
    return [module.name for module in found.modules]


def test_reachable_modules_only(script: Script) -> None:
    files = {"train.py": "import a", "a.py": "from pkg import b", "pkg/b.py": "", "unused.py": ""}
    assert names(script(files)) == ["__main__", "a", "pkg.b"]


def test_libraries_are_not_read(script: Script) -> None:
    assert names(script("import torch, numpy, os.path")) == ["__main__"]


def test_import_cycles_end(script: Script) -> None:
    files = {"train.py": "import a", "a.py": "import b", "b.py": "import a, train"}
    assert names(script(files)) == ["__main__", "a", "b"]


def test_pythonpath_inside_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "tools" / "train.py").write_text("import engine")
    (tmp_path / "lib" / "engine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert names(understand(tmp_path / "tools" / "train.py", Sources())) == ["__main__"]
    monkeypatch.setenv("PYTHONPATH", "lib")
    assert names(understand(tmp_path / "tools" / "train.py", Sources())) == ["__main__", "engine"]


def test_a_module_that_does_not_parse_is_left_out_and_kept_as_a_reason(script: Script) -> None:
    found = script({"train.py": "import broken, fine", "broken.py": "def (", "fine.py": ""})
    assert names(found) == ["__main__", "fine"]
    (error,) = found.project.unreadable
    assert error.path is not None
    assert error.path.name == "broken.py"


def test_an_entry_that_does_not_parse_is_an_error(script: Script) -> None:
    with pytest.raises(TorchoptError, match=r"train\.py:1:5"):
        script("def (")


def test_what_is_loaded_before_the_first_loop(script: Script) -> None:
    train = "import a\nfor x in range(3):\n    pass\nimport late\ndef f():\n    import lazy\n"
    files = {"train.py": train, "a.py": "import b", "b.py": "def g():\n    import c\n"}
    found = script({**files, "c.py": "", "late.py": "", "lazy.py": ""})
    assert {module.name for module in found.project.loaded_first} == {"a", "b"}
    assert names(found) == ["__main__", "a", "late", "lazy", "b", "c"]


def test_what_an_imported_file_imports_where_it_is_started_itself_is_another_scripts(
    script: Script,
) -> None:
    text = "import a\nif __name__ == '__main__':\n    import b\nelse:\n    import c\n"
    others = {"a.py": "", "b.py": "", "c.py": ""}
    assert names(script({"train.py": "import tool", "tool.py": text, **others})) == [
        "__main__",
        "tool",
        "a",
        "c",
    ]
    assert names(script({"tool.py": text, **others})) == ["__main__", "a", "b", "c"]
