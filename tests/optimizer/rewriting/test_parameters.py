"""A new parameter and the argument that goes with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.rewriting.apply import EditError
from torchopt_cli.optimizer.rewriting.edits import (
    AddParameter,
    InsertArgument,
    ReplaceExpression,
    Span,
)

Rewritten = Callable[..., str]
FindSpan = Callable[..., Span]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("def f(a, b):\n    pass\n", "def f(a, new, b):\n    pass\n"),
        ("def f(a):\n    pass\n", "def f(a, new):\n    pass\n"),
        ("def f(a, *, b=1):\n    pass\n", "def f(a, new, *, b=1):\n    pass\n"),
        ("def f(a: int, b=(1, 2)):\n    pass\n", "def f(a: int, new, b=(1, 2)):\n    pass\n"),
        ("async def f(a) -> int:\n    pass\n", "async def f(a, new) -> int:\n    pass\n"),
        ("def f(a, b=lambda x, y: x): return a\n", "def f(a, new, b=lambda x, y: x): return a\n"),
        (
            "def f(\n    a,  # first\n    b,\n):\n    pass\n",
            "def f(\n    a,  # first\n    new,\n    b,\n):\n    pass\n",
        ),
        (
            "def f(x,\n      a, \n      b,\n      c, d):\n    pass\n",
            "def f(x,\n      a, \n      new, \n      b,\n      c, d):\n    pass\n",
        ),
        (
            "def f(x,\n      a,\n      b, c, d):\n    pass\n",
            "def f(x,\n      a, new,\n      b, c, d):\n    pass\n",
        ),
    ],
)
def test_parameter(rewritten: Rewritten, span: FindSpan, text: str, after: str) -> None:
    assert rewritten(text, AddParameter(span(text, text.rstrip("\n")), "new", "a")) == after


def test_other_edits_inside_the_function(rewritten: Rewritten, span: FindSpan) -> None:
    text = "def f(a):\n    return g(a)\n"
    edits = (
        AddParameter(span(text, text.rstrip("\n")), "new", "a"),
        ReplaceExpression(span(text, "g(a)"), "new(a)"),
    )
    assert rewritten(text, *edits) == "def f(a, new):\n    return new(a)\n"


def test_parameter_behind_one_that_is_not_there(rewritten: Rewritten, span: FindSpan) -> None:
    text = "def f(a):\n    pass\n"
    with pytest.raises(EditError, match="no parameter b"):
        rewritten(text, AddParameter(span(text, text.rstrip("\n")), "new", "b"))
    with pytest.raises(EditError, match="no function"):
        rewritten(text, AddParameter(span(text, "pass"), "new", "a"))


@pytest.mark.parametrize(
    ("call", "position", "after"),
    [
        ("f(a, b)", 1, "f(a, new, b)"),
        ("f(a)", 1, "f(a, new)"),
        ("f()", 0, "f(new)"),
        ("f(a, k=1)", 1, "f(a, new, k=1)"),
        ("f(\n    a,\n    b,\n)", 1, "f(\n    a,\n    new,\n    b,\n)"),
        ("f(g(x, y), b)", 1, "f(g(x, y), new, b)"),
    ],
)
def test_argument(
    rewritten: Rewritten, span: FindSpan, call: str, position: int, after: str
) -> None:
    text = f"{call}\n"
    assert rewritten(text, InsertArgument(span(text, call), position, "new")) == f"{after}\n"


def test_argument_beyond_the_last(rewritten: Rewritten, span: FindSpan) -> None:
    with pytest.raises(EditError, match="fewer arguments"):
        rewritten("f(a)\n", InsertArgument(span("f(a)\n", "f(a)"), 3, "new"))
