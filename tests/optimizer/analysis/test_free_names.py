"""Names for new variables and where they go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.editing.free_names import (
    assignment_beside,
    common_statement,
    free_name,
    names_constants_in_capitals,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("x = 1\n", "n"),
        ("n = 1\n", "m"),
        ("def f(n):\n    pass\n", "m"),
        ("print(n)\n", "m"),
        ("n = 1\nm = 2\n", None),
        ("[n for n in x]\n", "m"),
        ("class A:\n    n = 1\n", "n"),
    ],
)
def test_free_name(script: Script, code: str, name: str | None) -> None:
    assert free_name(script(code).entry, ["n", "m"]) == name


def test_builtins_are_not_free(script: Script) -> None:
    assert free_name(script("x = 1\n").entry, ["len", "n"]) == "n"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("ASK()\nASK()\n", 1),
        ("x\nASK()\ny\nASK()\n", 2),
        ("if x:\n    ASK()\nelse:\n    ASK()\n", 1),
        ("if x:\n    y\n    ASK()\n    ASK()\n", 3),
        ("def f():\n    y\n    ASK()\n    if x:\n        ASK()\n", 3),
        ("x\ndef f():\n    ASK()\ndef g():\n    ASK()\n", 2),
        ("x\nclass A:\n    def f(self):\n        ASK()\n    def g(self):\n        ASK()\n", 2),
        ("class A:\n    def f(self):\n        y\n        ASK()\n        ASK()\n", 4),
        ("class A:\n    x = ASK()\n    y = ASK()\n", 1),
        ("y = [ASK(), ASK()]\n", 1),
    ],
)
def test_common_statement(script: Script, code: str, line: int) -> None:
    module = script(code).entry
    calls = [c for c in module.calls if module.code(c.func) == "ASK"]
    assert common_statement(module, calls).lineno == line


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("size = 4\nASK(size)\n", 1),
        ("size = 4\nx = 1\nASK(size)\n", 1),
        ("ASK(4)\n", None),
        ("ASK(args.size)\n", None),
        ("size = 4\nsize = 5\nASK(size)\n", None),
        ("size, n = 4, 5\nASK(size)\n", None),
        ("size = n = 4\nASK(size)\n", None),
        ("size = 4\ndef f():\n    ASK(size)\n", None),
        ("def f():\n    size = 4\n    ASK(size)\n", 2),
        ("def f(size):\n    ASK(size)\n", None),
        ("ASK(size)\n", None),
        ("if x:\n    size = 4\nASK(size)\n", None),
    ],
)
def test_assignment_beside(script: Script, code: str, line: int | None) -> None:
    module = script(code).entry
    (call,) = [c for c in module.calls if module.code(c.func) == "ASK"]
    found = assignment_beside(module, call.args[0], module.statement(call))
    assert (None if found is None else found.lineno) == line


@pytest.mark.parametrize(
    ("code", "capitals"),
    [
        ("SIZE = 4\n", True),
        ("size = 4\n", False),
        ("SIZE = 4\nrate = 0.1\n", False),
        ("SIZE = 4\nmodel = make()\n", True),
        ("model = make()\n", False),
    ],
)
def test_capitals(script: Script, code: str, capitals: bool) -> None:
    assert names_constants_in_capitals(script(code).entry) is capitals
