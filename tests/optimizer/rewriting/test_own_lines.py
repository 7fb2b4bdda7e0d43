from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.rewriting.edits import (
    InsertAfter,
    InsertBefore,
    RemoveStatement,
    ReplaceStatement,
    SetArgument,
    Span,
    Wrap,
)
from torchopt_cli.optimizer.rewriting.own_lines import give_own_lines
from torchopt_cli.optimizer.rewriting.source_tree import SourceTree
from torchopt_cli.optimizer.rewriting.style import Style

Find = Callable[..., Span]


def test_edits_follow_their_targets(span: Find) -> None:
    text = "if x: a(); b(c); d()\nelif y: e()\nf(g)\n"
    source = SourceTree.parse(text)
    targets = ["b(c)", "d()", "e()", "f(g)", "c"]
    edits = [
        InsertBefore(span(text, "b(c)"), "new"),
        RemoveStatement(span(text, "d()")),
        InsertAfter(span(text, "e()"), "new"),
        Wrap(span(text, "f(g)"), span(text, "f(g)"), "with x:"),
        SetArgument(span(text, "c"), "k", "1"),
    ]
    split, moved = give_own_lines(source, edits, Style())
    assert split.text == "if x:\n    a()\n    b(c); d()\nelif y:\n    e()\nf(g)\n"
    for edit, target in zip(moved, targets, strict=True):
        where = next(value for value in vars(edit).values() if isinstance(value, Span))
        start = split.starts[where.line - 1] + where.column
        end = split.starts[where.end_line - 1] + where.end_column
        assert split.text[start:end] == target


@pytest.mark.parametrize("target", ["a()", "b()"])
def test_nothing_is_split_for_what_fits(target: str, span: Find) -> None:
    text = "if x: a(); b()\n"
    edits = [RemoveStatement(span(text, target)), ReplaceStatement(span(text, target), "c()")]
    source = SourceTree.parse(text)
    for edit in edits:
        assert give_own_lines(source, [edit], Style()) == (source, [edit])
