"""What sets or changes the globals of a file."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.values.global_changes import global_setters

Script = Callable[..., TrainingScript]
HEAD = """\
import random
class Names(list):
    def __init__(self, path):
        self.path = path
    def move(self, path):
        self.path = path
    def show(self):
        print(self.path)
def fill(into):
    add(into)
def add(into):
    into.append(1)
def rebind():
    global names
    names = []
def local():
    names = []
    names.append(1)
names = Names("a")
"""


@pytest.mark.parametrize(
    ("statement", "attribute"),
    [
        ("names = 1", None),
        ("names.append(1)", None),
        ("names[0] = 1", None),
        ("del names[0]", None),
        ("names += [1]", None),
        ("names.path = 1", "path"),
        ("names.path[0] = 1", None),
        ("names.setdefault(1, []).append(2)", None),
        ("random.shuffle(names)", None),
        ("fill(names)", None),
        ("rebind()", None),
        ("names.move('b')", None),
    ],
)
def test_setters(script: Script, statement: str, attribute: str | None) -> None:
    understood = script(f"{HEAD}{statement}\n")
    entry = understood.entry
    last = len(HEAD.splitlines()) + 1
    found = global_setters(understood.resolver, entry)["names"]
    assert {s.attribute for s in found if entry.span(s.node).line == last} == {attribute}


@pytest.mark.parametrize(
    "statement", ["print(names)", "local()", "names.show()", "other = [n for n in names]"]
)
def test_nothing_is_set(script: Script, statement: str) -> None:
    understood = script(f"{HEAD}{statement}\n")
    entry = understood.entry
    found = global_setters(understood.resolver, entry)["names"]
    assert {entry.span(s.node).line for s in found} == {len(HEAD.splitlines())}


def test_attribute_read(script: Script) -> None:
    understood = script(f"{HEAD}names.path = 'b'\nnames.path\nnames.other\nprint(names)\n")
    entry = understood.entry
    setter = global_setters(understood.resolver, entry)["names"][-1]
    names = sorted(entry.names_of("names"), key=lambda name: name.lineno)
    reads = [name for name in names if isinstance(name.ctx, ast.Load)][-3:]
    assert [setter.matters_to(read, entry) for read in reads] == [True, False, True]
