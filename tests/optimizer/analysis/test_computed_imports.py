"""Modules that are imported by a name that is put together when the script runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript

Ask = Callable[..., set[object]]
Script = Callable[..., TrainingScript]
MODELS = {
    "models/__init__.py": "",
    "models/small_net.py": "class Net:\n    pass\n",
    "models/big_net.py": "from .parts import Part\nclass Net(Part):\n    pass\n",
    "models/parts.py": "class Part:\n    pass\n",
    "models/deep/__init__.py": "class Net:\n    deep = 1\n",
    "tools.py": "class Tool:\n    pass\n",
}
HEAD = "import importlib, sys\nfrom importlib import import_module\nname = sys.argv[1]\n"


def imported(found: TrainingScript) -> set[str]:
    return {module.name for module in found.modules[1:]}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("'models.' + name", {"small_net", "big_net", "parts", "deep"}),
        ("'models.' + name.lower() + '_net'", {"small_net", "big_net", "parts"}),
        ("f'models.{name}_net'", {"small_net", "big_net", "parts"}),
        ("'models.%s_net' % name", {"small_net", "big_net", "parts"}),
        ("'models.{}_net'.format(name)", {"small_net", "big_net", "parts"}),
        ("'models.{}_{}'.format('big', name)", {"big_net", "small_net", "parts"}),
        ("'models.small_net'", {"small_net"}),
        ("'.small_net', 'models'", {"small_net"}),
        ("'.' + name, package='models'", {"small_net", "big_net", "parts", "deep"}),
    ],
)
def test_names_with_a_package(script: Script, module: str, expected: set[str]) -> None:
    found = script({"train.py": f"{HEAD}import_module({module})\n", **MODELS})
    assert imported(found) == {"models", *(f"models.{name}" for name in expected)}


@pytest.mark.parametrize(
    "module", ["name", "name + '.models'", "'..models', name", "'torch.' + name"]
)
def test_names_that_tell_nothing(script: Script, module: str) -> None:
    found = script({"train.py": f"{HEAD}import_module({module})\n", **MODELS})
    assert imported(found) == set()


def test_a_name_alone_in_a_folder_that_is_added(script: Script) -> None:
    code = f"{HEAD}sys.path.append('models')\nimport_module(name)\n"
    found = script({"train.py": code, **MODELS})
    assert imported(found) == {"small_net", "big_net", "parts", "deep"}


def test_one_of_its_own_package(script: Script) -> None:
    package = {
        "models/__init__.py": "from importlib import import_module\ndef make(name):\n"
        "    return import_module('.' + name, __name__).Net()\n"
    }
    found = script({"train.py": "from models import make\n", **(MODELS | package)})
    assert "models.small_net" in imported(found)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("module.Net()", {"Net()"}),
        ("module.Part", {"<Part>"}),
        ("importlib.import_module('models.deep').Net.deep", {1}),
    ],
)
def test_what_they_have(ask: Ask, asked: str, expected: set[object]) -> None:
    """Only what the modules have in common with what is asked of them."""
    code = f"{HEAD}module = importlib.import_module('models.' + name)\nASK({asked})\n"
    assert ask({"train.py": code, **MODELS}) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("found = cls", {"Net()", "Part()"}),
        ("if name in key and issubclass(cls, Part):\n        found = cls", {"Net()"}),
    ],
)
def test_a_module_that_is_gone_through(ask: Ask, asked: str, expected: set[object]) -> None:
    code = f"""
from models.parts import Part
found = None
for key, cls in import_module("models." + name + "_net").__dict__.items():
    {asked}
ASK(found())
"""
    assert ask({"train.py": f"{HEAD}{code}", **MODELS}) == expected
