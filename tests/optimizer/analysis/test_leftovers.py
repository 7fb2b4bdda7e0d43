"""What code that nothing names passes to a function is none of its values, unless something may find it by a text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torchopt_cli.optimizer.analysis.calls.callbacks import has_known_callers
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.values.values import Literal

Script = Callable[[str | Mapping[str, str]], TrainingScript]
USED = "def used(x):\n    HERE(x)\n"
START = "used(1)\nloss.backward()\n"


def given(understood: TrainingScript) -> set[object]:
    """What the argument of ``HERE`` may be: literal values, None for what is not known."""
    (call, module) = next((c, m) for m in understood.modules for c in m.calls_named("HERE"))
    values = understood.resolver.values(call.args[0], module)
    return {value.value if isinstance(value, Literal) else None for value in values}


@pytest.mark.parametrize(
    "rest",
    [
        "def dead(x):\n    used(x)",
        "def dead(x):\n    used(x)\ndef main(x):\n    dead(x)",
        "class Dead:\n    def run(self, x):\n        used(x)",
        "class Dead(object):\n    def run(self, x):\n        used(x)",
        "def dead(x):\n    used(x)\n    dead(x)",
        "def dead(x):\n    used(x)\nopts = getattr(args, name)",
        "import torch\ndef dead(x):\n    used(x)\nopts = getattr(torch.optim, name)",
        'def dead(x):\n    """Rather than dead, call used."""\n    used(x)',
        "def dead(x):\n    used(x)\nsettings = vars(args)",
    ],
)
def test_leftovers_pass_nothing(script: Script, rest: str) -> None:
    assert given(script(f"{USED}\n{rest}\n{START}")) == {1}


@pytest.mark.parametrize(
    "rest",
    [
        "def run(x):\n    used(x)\nrun(y)",
        "@register\ndef run(x):\n    used(x)",
        "def run(x):\n    used(x)\neval(text)",
        "def run(x):\n    used(x)\nglobals()[name](3)",
        "def run(x):\n    used(x)\nfire.Fire()",
        "def run(x):\n    used(x)\nsys.modules[__name__]",
        "def run(x):\n    used(x)\nCALLED = 'run'",
        "def run(x):\n    used(x)\nCALLED = 'train:run'",
        "def run(x):\n    used(x)\nKINDS = {'a': run}",
        "class Run(Base):\n    def run(self, x):\n        used(x)",
        "class Run:\n    def run(self, x):\n        used(x)\nRun().run(y)",
        "def __getattr__(x):\n    used(x)",
        "if y:\n    def run(x):\n        used(x)",
        "def a(x):\n    used(x)\ndef b(x):\n    a(x)\nb(y)",
    ],
)
def test_what_may_run_passes_what_is_not_known(script: Script, rest: str) -> None:
    assert None in given(script(f"{USED}\n{rest}\n{START}"))


@pytest.mark.parametrize(
    "start", ["", "used(1)", "class Net(Module):\n    def train(self):\n        super().train()"]
)
def test_a_file_that_does_not_train_by_itself_has_callers_that_are_not_seen(
    script: Script, start: str
) -> None:
    train = "def train(x):\n    used(x)\n    loss.backward()"
    assert None in given(script(f"{USED}\n{train}\n{start}\n"))


@pytest.mark.parametrize(("beside", "known"), [("import main", False), ("import other", True)])
def test_a_file_that_others_import(
    script: Script, tmp_path: Path, beside: str, known: bool
) -> None:
    (tmp_path / "sweep.py").write_text(f"{beside}\nfor rate in rates:\n    main.run(rate)\n")
    files = {"main.py": f"{USED}\ndef run(x):\n    used(x)\n{START}"}
    assert given(script(files)) == ({1} if known else {1, None})


@pytest.mark.parametrize(("start", "known"), [(START, True), (START + "rest(y)\n", False)])
def test_leftovers_hand_nothing_on(script: Script, start: str, known: bool) -> None:
    understood = script(f"{USED}\ndef rest(x):\n    register(used)\n{start}")
    entry = understood.entry
    (used,) = (s for s in entry.tree.body if isinstance(s, ast.FunctionDef) and s.name == "used")
    assert has_known_callers(understood.resolver, used, entry) is known


TOOLS = "from used import used\ndef tool(x):\n    used(x)\n"


@pytest.mark.parametrize(
    ("entry", "tools", "known"),
    [
        ("import tools", TOOLS, True),
        ("import package.tools\npackage.tools.other(1)", TOOLS, True),
        ("import tools", TOOLS + "if __name__ == '__main__':\n    tool(y)\n", True),
        ("from tools import tool", TOOLS, True),
        ("from tools import *", TOOLS, True),
        ("from tools import *", "__all__ = ['tool']\n" + TOOLS, True),
        ("import tools as t\nt.tool(y)", TOOLS, False),
        ("from tools import tool as t\nt(y)", TOOLS, False),
        ("from tools import *\ntool(y)", TOOLS, False),
        ("import tools\ngetattr(tools, name)(y)", TOOLS, False),
        ("import tools\ntools.__dict__[name](y)", TOOLS, False),
        ("import tools\nwork(tools)", TOOLS, False),
        ("from package import tools\nwork(tools)", TOOLS, False),
        ("import package.tools\nwork(package.tools)", TOOLS, False),
        ("from package import *\nwork(tools)", TOOLS, False),
        ("import tools\neval(text)", TOOLS, False),
        ("from tools import tool\neval(text)", TOOLS, False),
        ("import importlib\nimport tools\nimportlib.import_module(name)", TOOLS, False),
    ],
)
def test_imported_files(script: Script, entry: str, tools: str, known: bool) -> None:
    files = {
        "main.py": f"{entry}\nfrom used import used\nused(1)\n",
        "used.py": f"{USED}\ndef other(tools):\n    return [tools]\nother(1)\n",
        "tools.py": tools,
    }
    if "package" in entry:
        files |= {"package/__init__.py": "from . import tools", "package/tools.py": tools}
    assert given(script(files)) == ({1} if known else {1, None})


def test_a_package_may_hand_out_what_it_takes_over_from_its_files(script: Script) -> None:
    files = {
        "main.py": "import package\nfrom used import used\nused(1)\ngetattr(package, name)(y)\n",
        "used.py": USED,
        "package/__init__.py": "from .tools import *",
        "package/tools.py": TOOLS,
    }
    assert given(script(files)) == {1, None}
