"""Attributes of ``self`` are read only where they have been set."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.editing.own_attributes import is_kept_before
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("methods", "is_kept"),
    [
        ("def __init__(self):\n    self.x = 1\n    ASK()", True),
        ("def __init__(self):\n    ASK()\n    self.x = 1", False),
        ("def __init__(self):\n    if y:\n        self.x = 1\n    ASK()", False),
        ("def __init__(self):\n    if y:\n        self.x = 1\n        ASK()", True),
        (
            "def __init__(self):\n    if y:\n        self.x = 1\n    else:\n        self.x = 2\n    ASK()",
            True,
        ),
        ("def __init__(self):\n    with y:\n        self.x = 1\n    ASK()", True),
        ("def __init__(self):\n    for i in y:\n        self.x = 1\n    ASK()", False),
        ("def __init__(self):\n    self.make()\n    ASK()\ndef make(self):\n    self.x = 1", True),
        ("def __init__(self):\n    ASK()\n    self.make()\ndef make(self):\n    self.x = 1", False),
        ("def __init__(self):\n    self.x = 1\ndef run(self):\n    ASK()", True),
        (
            "def __init__(self):\n    self.x = 1\n    self.run()\ndef run(self):\n    self.step()\n"
            "def step(self):\n    ASK()",
            True,
        ),
        (
            "def __init__(self):\n    self.run()\n    self.x = 1\ndef run(self):\n    self.step()\n"
            "def step(self):\n    ASK()",
            False,
        ),
        ("def make(self):\n    self.x = 1\ndef run(self):\n    ASK()", True),
        ("def run(self):\n    ASK()\n    self.x = 1", False),
        ("x = 1\ndef run(self):\n    ASK()", True),
        ("def run(self):\n    ASK()\n    self.run()\ndef make(self):\n    self.x = 1", True),
    ],
)
def test_within_a_class(script: Script, methods: str, is_kept: bool) -> None:
    assert _is_kept(script(f"y = open('y')\nclass T:\n{indent(methods, '    ')}\n")) is is_kept


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        ("super().__init__()\nASK()", True),
        ("ASK()\nsuper().__init__()", False),
        ("ASK()", False),
    ],
)
def test_set_by_the_constructor_of_a_base(script: Script, body: str, is_kept: bool) -> None:
    base = "class Base:\n    def __init__(self):\n        self.x = 1\n"
    code = f"{base}class T(Base):\n    def __init__(self):\n{indent(dedent(body), '        ')}\n"
    assert _is_kept(script(code)) is is_kept


def _is_kept(understood: TrainingScript) -> bool:
    module = understood.entry
    (call,) = [call for call in module.calls if module.code(call) == "ASK()"]
    return is_kept_before(understood.resolver, "x", call, module)
