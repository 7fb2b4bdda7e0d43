"""Which definitions of imported files a start of the script comes to."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.calls.reach import never_runs
from torchopt_cli.optimizer.analysis.calls.started_code import StartedCode
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

ENGINE = """\
import torch
def train(loader):
    for x in loader:
        step(x)
def step(x):
    return x
def validate(loader):
    return step(loader)
def main():
    train([])
    validate([])
class Net(torch.nn.Module):
    pass
class Wide(Net):
    pass
__all__ = ["train", "validate"]
if __name__ == "__main__":
    main()
"""


def left_out(script: Script, train: str, engine: str = ENGINE) -> list[str]:
    understood = script({"train.py": train, "engine.py": engine})
    started = StartedCode(understood.resolver)
    (module,) = (m for m in understood.modules if m.path.name == "engine.py")
    return [
        str(getattr(statement, "name", ""))
        for statement in module.tree.body
        if started.leaves_out(statement, module)
    ]


def here_runs(script: Script, train: str, engine: str) -> bool:
    """Whether the one ``HERE`` of the imported file may run."""
    understood = script({"train.py": train, "engine.py": engine})
    (module,) = (m for m in understood.modules if m.path.name == "engine.py")
    (here,) = (n for n in module.nodes if isinstance(n, ast.Name) and n.id == "HERE")
    return not never_runs(understood.resolver, here, module)


@pytest.mark.parametrize(
    ("train", "left"),
    [
        ("import engine", "train step validate main Net Wide"),
        ("from engine import train\ntrain([])", "validate main Net Wide"),
        ("from engine import train as fit\nfit([])", "validate main Net Wide"),
        ("from engine import train\nfit = {'fit': train}", "validate main Net Wide"),
        ("import engine\nengine.validate([])", "train main Net Wide"),
        ("import engine as e\nprint(e.Wide)", "train step validate main"),
        ("from engine import *\ntrain([])", "validate main Net Wide"),
        ("import engine\ndef train():\n    pass\ntrain()", "train step validate main Net Wide"),
        ("import engine\nmodel.train()", "train step validate main Net Wide"),
        ("import engine\nprint('train')", "train step validate main Net Wide"),
        ("import engine\ngetattr(engine, 'train')([])", "validate main Net Wide"),
        ("import engine\npath = 'engine.train'", "validate main Net Wide"),
        ("import engine\ngetattr(engine, name)()", ""),
        ("import engine\nengine.__dict__[name]()", ""),
        ("import engine\neval(name)()", ""),
        ("from engine import train\neval(name)()", "validate main Net Wide"),
        ("import engine, other\ngetattr(other, name)()", "train step validate main Net Wide"),
        ("import engine, hydra\nhydra.utils.instantiate(config)", ""),
        ("import engine\nmodel.eval()\nvars(args)", "train step validate main Net Wide"),
    ],
)
def test_what_is_left_out(script: Script, train: str, left: str) -> None:
    assert left_out(script, train) == left.split()


@pytest.mark.parametrize(
    "engine",
    [
        "@register\ndef train():\n    pass\n",
        "class Net(Base):\n    pass\n",
        "class Net(metaclass=Meta):\n    pass\n",
        "import torch\nclass Base(torch.nn.Module):\n    def __init_subclass__(cls):\n        pass\nBase\n"
        "class Net(Base):\n    pass\n",
        "def train():\n    pass\nTABLE = {'train': train}\n",
    ],
)
def test_what_others_know(script: Script, engine: str) -> None:
    assert left_out(script, "import engine", engine) == []


@pytest.mark.parametrize(
    ("train", "left"),
    [
        ("import nets\nnets.Deep()", "Deeper"),
        ("import nets\nnets.__dict__[name]()", ""),
    ],
)
def test_what_a_package_takes_over_from_its_files(script: Script, train: str, left: str) -> None:
    nets = "import torch\nclass Deep(torch.nn.Module):\n    pass\nclass Deeper(Deep):\n    pass\n"
    files = {"train.py": train, "nets/__init__.py": "from .deep import *", "nets/deep.py": nets}
    understood = script(files)
    started = understood.resolver.started
    (module,) = (m for m in understood.modules if m.path.name == "deep.py")
    found = [s for s in module.tree.body if started.leaves_out(s, module)]
    assert [getattr(s, "name", "") for s in found] == left.split()


@pytest.mark.parametrize(
    ("train", "runs"),
    [
        ("import torch\nfrom engine import Wide\ntorch.load(path)", True),
        ("import torch\nfrom engine import Wide\ntorch.load(path, weights_only=True)", False),
        ("import torch\nfrom engine import train\ntorch.load(path)", False),
        ("import torch\nfrom engine import *\ntorch.load(path)", True),
        ("import json\nfrom engine import Wide\njson.load(file)", False),
        ("import engine\nmade = make(engine)\ngetattr(made, name)()", True),
    ],
)
def test_what_may_be_reached_without_being_seen_to(script: Script, train: str, runs: bool) -> None:
    engine = ENGINE.replace("(Net):\n    pass", "(Net):\n    def forward(self):\n        HERE")
    assert here_runs(script, train, engine) is runs


@pytest.mark.parametrize(
    ("old", "new", "runs"),
    [
        ("return step(loader)", "return HERE", False),
        (
            "class Wide(Net):\n    pass",
            "class Wide(Net):\n    def forward(self):\n        HERE",
            False,
        ),
        ("    train([])", "    HERE", False),
        ("        step(x)", "        HERE", True),
        ("__all__", "HERE\n__all__", True),
    ],
)
def test_code_of_what_is_left_out(script: Script, old: str, new: str, runs: bool) -> None:
    engine = ENGINE.replace(old, new, 1)
    assert here_runs(script, "from engine import train\ntrain([])", engine) is runs


def test_all_of_the_scripts_own_file_is_its_own(script: Script) -> None:
    understood = script("def train():\n    pass\n")
    started = StartedCode(understood.resolver)
    assert not started.leaves_out(understood.entry.tree.body[0], understood.entry)
