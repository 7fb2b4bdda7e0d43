"""Which statements stand behind a value."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.values.dataflow import Flow, dotted, read_names


@pytest.fixture
def behind(script: Callable[..., TrainingScript]) -> Callable[[str], list[str]]:
    """``behind(body)``: the code of the statements behind what ``ASK(..)``, the body's last statement, is given."""

    def ask(body: str) -> list[str]:
        module = script(dedent(body)).entry
        flow = Flow(module, tuple(module.tree.body))
        last = flow.statements[-1]
        assert isinstance(last, ast.Expr)
        assert isinstance(last.value, ast.Call)
        found = flow.statements_behind(last.value.args[0], last)
        rows = [module.code(s).split("\n")[0] for s in flow.statements if s in found]
        return rows

    return ask


def test_chains_of_names(behind: Callable[[str], list[str]]) -> None:
    body = """
    a = 1
    b = a + 1
    unused = 2
    c = b * 2
    ASK(c)
    """
    assert behind(body) == ["a = 1", "b = a + 1", "c = b * 2"]


def test_a_new_value_hides_the_old_one(behind: Callable[[str], list[str]]) -> None:
    assert behind("a = 1\na = 2\nASK(a)") == ["a = 2"]
    assert behind("a = 1\nif x:\n    a = 2\nASK(a)") == ["a = 1", "a = 2"]


def test_what_is_added_keeps_the_old_value(behind: Callable[[str], list[str]]) -> None:
    assert behind("a = 1\na += b\nASK(a)") == ["a = 1", "a += b"]
    assert behind("a = []\na.append(b)\nASK(a)") == ["a = []", "a.append(b)"]
    assert behind("a = {}\na['k'] = b\nASK(a)") == ["a = {}", "a['k'] = b"]


def test_parts_and_attributes(behind: Callable[[str], list[str]]) -> None:
    assert behind("a, (b, *c) = f()\nASK(c)") == ["a, (b, *c) = f()"]
    assert behind("out = f()\nASK(out.loss)") == ["out = f()"]
    assert behind("self.fake = f()\nself.real = 1\nASK(self.fake)") == ["self.fake = f()"]


def test_loops_conditions_and_contexts(behind: Callable[[str], list[str]]) -> None:
    assert behind("for x in data:\n    total = x\nASK(total)") == ["for x in data:", "total = x"]
    assert behind("with f() as x:\n    y = x\nASK(y)") == ["with f() as x:", "y = x"]
    assert behind("if (n := f()) > 1:\n    pass\nASK(n)") == ["if (n := f()) > 1:"]


def test_later_values_do_not_count(behind: Callable[[str], list[str]]) -> None:
    assert behind("a = 1\ndef f():\n    a = 2\nASK(a)") == ["a = 1"]


def test_dotted_names() -> None:
    def expression(code: str) -> ast.expr:
        return ast.parse(code, mode="eval").body

    assert dotted(expression("a.b.c")) == "a.b.c"
    assert dotted(expression("f().b")) is None
    assert read_names(ast.walk(expression("a.b(c[d], e.f.g)"))) == {"a.b", "c", "d", "e.f.g"}
