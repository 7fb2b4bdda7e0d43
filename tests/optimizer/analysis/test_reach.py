"""What code runs when a piece of code runs."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.reach import reached_nodes
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import functools, json
def work(*values):
    return "reached"
direct = lambda x: "reached"
tools = {"work": direct}
bound = functools.partial(work, 1)
class Holder:
    def __init__(self):
        self.work = lambda: "reached"
def given(f):
    return f()
"""


@pytest.mark.parametrize(
    ("statement", "reached"),
    [
        ("work()", True),
        ("direct(1)", True),
        ("tools['work'](1)", True),
        ("bound(2)", True),
        ("Holder().work()", True),
        ("given(lambda: 'reached')", True),
        ("list(map(direct, []))", True),
        ("sorted([], key=lambda x: 'reached')", True),
        ("optimizer.step(lambda: 'reached')", True),
        ("other = direct", False),
        ("bound = functools.partial(work, 2)", False),
        ("json.register(direct)", False),
    ],
)
def test_functions_reached(script: Script, statement: str, reached: bool) -> None:
    understood = script(f"{HEAD}{statement}\n")
    entry = understood.entry
    nodes = [r.node for r in reached_nodes(understood.resolver, [entry.tree.body[-1]], entry)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    assert ("reached" in texts) is reached
