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
