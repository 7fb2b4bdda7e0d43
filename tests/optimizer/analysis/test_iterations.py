"""Where passes over loaders start."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.loading.iterations import (
    loops_around,
    runs_when_imported,
    top_level_starts,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
from torch.utils.data import DataLoader
loader = DataLoader(open("x"))
other = DataLoader(open("y"))
"""


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        ("for x in loader:\n    pass\n", ["loop 1"]),
        ("for i, x in enumerate(loader):\n    pass\n", ["loop 1"]),
        ("for a, b in zip(loader, other):\n    pass\n", ["loop 2"]),
        ("for a, b in zip(loader, loader):\n    pass\n", ["loop 2"]),
        ("for i, (a, b) in enumerate(zip(loader, other)):\n    pass\n", ["loop 2"]),
        ("both = zip(loader, other)\nfor i, (a, b) in enumerate(both):\n    pass\n", ["loop 2"]),
        ("both = zip(loader, loader)\nfor a, b in both:\n    pass\n", ["loop 2"]),
        (
            "both = zip(loader, other)\nfor _ in range(2):\n    both = enumerate(both)\n"
            "for x in both:\n    pass\n",
            ["loop 1"],
        ),
        ("while other:\n    both = enumerate(both)\nfor x in both:\n    pass\n", []),
        ("for x in iter(loader):\n    pass\n", ["loop 1"]),
        ("it = iter(loader)\n", ["by hand 1"]),
        ("it = loader.__iter__()\n", ["by hand 1"]),
        ("for x in loader.__iter__():\n    pass\n", ["loop 1"]),
        ("x = next(iter(loader))\n", ["takes one 1"]),
        ("x = iter(loader).next()\n", ["takes one 1"]),
        ("total = sum(x for x in loader)\n", ["loop 1"]),
        ("it = iter([1])\n", []),
        ("while loader:\n    pass\n", []),
    ],
)
def test_passes(script: Script, code: str, passes: list[str]) -> None:
    found = [
        f"{'takes one' if i.takes_one else 'by hand' if i.by_hand else 'loop'} {len(i.loaders)}"
        for i in script(HEAD + code).iterations
    ]
    assert found == passes


def the_call(script: TrainingScript, name: str) -> ast.Call:
    (call,) = [c for c in script.entry.calls if script.entry.code(c.func) == name]
    return call


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("ASK()\n", []),
        ("for i in range(3):\n    ASK()\n", [1]),
        ("for i in range(3):\n    while True:\n        ASK()\n", [2, 1]),
        ("for i in range(ASK()):\n    pass\n", []),
        ("def f():\n    ASK()\nfor i in range(3):\n    f()\n", [3]),
        ("def f():\n    ASK()\ndef g():\n    f()\nfor i in range(3):\n    g()\n", [5]),
        ("def f(n):\n    ASK()\n    for i in range(3):\n        f(n)\n", [3]),
    ],
)
def test_loops_around(script: Script, code: str, lines: list[int]) -> None:
    understood = script(code)
    around = loops_around(understood.resolver, the_call(understood, "ASK"), understood.entry)
    assert [a.node.lineno for a in around] == lines


@pytest.mark.parametrize(
    ("code", "at_import"),
    [
        ("ASK()\n", True),
        ("if __name__ == '__main__':\n    ASK()\n", False),
        ("if __name__ == '__main__':\n    pass\nif '__main__' == __name__:\n    ASK()\n", False),
        ("def f():\n    ASK()\n", False),
        ("def f():\n    ASK()\nf()\n", True),
        ("def f():\n    ASK()\nif __name__ == '__main__':\n    f()\n", False),
        ("class A:\n    ASK()\n", True),
        ("def f():\n    ASK()\n    f()\n", False),
    ],
)
def test_runs_when_imported(script: Script, code: str, at_import: bool) -> None:
    understood = script(code)
    node = the_call(understood, "ASK")
    assert runs_when_imported(understood.resolver, node, understood.entry) is at_import


def test_guarded_starts_are_starts(script: Script) -> None:
    understood = script("def f():\n    ASK()\nif __name__ == '__main__':\n    f()\n")
    starts = top_level_starts(understood.resolver, the_call(understood, "ASK"), understood.entry)
    assert [node.lineno for node, _ in starts] == [4]  # type: ignore[attr-defined]


def test_passes_in_other_files(script: Script) -> None:
    files = {
        "train.py": HEAD + "from engine import run\nrun(loader)\n",
        "engine.py": dedent(
            """\
            def run(batches):
                for x in batches:
                    print(x)
            """
        ),
    }
    (iteration,) = script(files).iterations
    assert iteration.path.name == "engine.py"
