"""Where things stand in a file."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("x = f(1)  # cuda:1\n", False),
        ("# cuda:1\nx = 1\n", False),
        ('"""Use cuda:1."""\nx = 1\n', False),
        ("def f():\n    '''One\n    of cuda:1\n    '''\n    return 1\n", False),
        ("x = 'cuda:1'\n", True),
        ("x = '#'; y = 'cuda:1'\n", True),
        ("'doc'; x = 'cuda:1'\n", True),
        ("'''do\nc'''; x = 'cuda:1'\n", True),
        ("x = (1,  # one\n     'cuda:1')  # two\r\n", True),
    ],
)
def test_comments_and_docstrings_are_not_searched(script: Script, code: str, found: bool) -> None:
    assert bool(script(code).entry.search(re.compile(r"cuda:1\b"))) is found


@pytest.mark.parametrize(
    ("code", "unindented"),
    [
        ("x = f(\n    g(\n        1,\n    ),\n)\n", "g(\n    1,\n)"),
        ("if y:\n    x = f(g([\n        1,\n    ]))\n", "g([\n    1,\n])"),
        ("if y:\n    x = f(2,\n          g(1,\n            3))\n", "g(1,\n  3)"),
        # less far in than the line that it begins in
        ("if y:\n    x = f(\n        g(\n      1))\n", "g(\n  1)"),
        ('if y:\n    x = f(g("""\n    a\n    """,\n      1))\n', 'g("""\n    a\n    """,\n  1)'),
        ("if y:\n    x = f(g(1,\n\n        2))\n", "g(1,\n\n    2)"),
    ],
)
def test_code_that_moves_to_a_line_of_its_own(script: Script, code: str, unindented: str) -> None:
    module = script(f"{code}").entry
    (call,) = (call for call in module.calls if module.code(call.func) == "g")
    assert module.unindented_code(call) == unindented
