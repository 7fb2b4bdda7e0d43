from __future__ import annotations

import pytest

from torchopt_cli.optimizer.rewriting.edits import AddImport, RemoveStatement, Span, Wrap
from torchopt_cli.optimizer.rewriting.rewrites import (
    EditError,
    Rank,
    Rewrite,
    carry_out,
    edit_span,
)

EDIT = RemoveStatement(Span(1, 0, 1, 1))


def around(
    start: int, end: int, name: str, rank: Rank = Rank.EXPRESSION, replaces: bool = False
) -> Rewrite:
    def function(text: str) -> str:
        return name if replaces else f"{name}[{text}]"

    return Rewrite(start, end, function, EDIT, rank, replaces)


def test_rewrites_nest() -> None:
    rewrites = [around(2, 3, "c"), around(0, 4, "a"), around(1, 3, "b"), around(5, 6, "d")]
    assert carry_out("012345", rewrites) == "a[0b[1c[2]]3]4d[5]"


def test_of_equal_rewrites_the_lower_rank_and_then_the_earlier_lies_inside() -> None:
    rewrites = [
        around(0, 1, "wrap", Rank.WRAP),
        around(0, 1, "first"),
        around(0, 1, "second"),
        around(0, 1, "layout", Rank.LAYOUT),
    ]
    assert carry_out("0", rewrites) == "wrap[layout[second[first[0]]]]"


def test_empty_stretches_lie_inside_what_begins_there_and_outside_what_ends_there() -> None:
    assert (
        carry_out("01", [around(0, 1, "a"), around(0, 0, "b"), around(1, 1, "c")]) == "a[b[]0]c[]1"
    )


@pytest.mark.parametrize(
    "rewrites",
    [
        [around(0, 2, "a"), around(1, 3, "b")],
        [around(0, 3, "a", replaces=True), around(1, 2, "b")],
        [around(0, 3, "a", replaces=True), around(0, 3, "b")],
        [around(0, 3, "a"), around(0, 3, "b", replaces=True)],
        [
            around(0, 3, "a", replaces=True),
            Rewrite(1, 3, str, None, Rank.LAYOUT),
            around(1, 2, "b"),
        ],
    ],
)
def test_conflicts(rewrites: list[Rewrite]) -> None:
    with pytest.raises(EditError):
        carry_out("0123", rewrites)


def test_a_replacement_may_lie_inside_a_rewrite_of_higher_rank() -> None:
    rewrites = [around(0, 1, "a", replaces=True), around(0, 1, "b", Rank.SURROUNDING)]
    assert carry_out("0", rewrites) == "b[a]"


def test_errors_say_where() -> None:
    wrap = Wrap(Span(3, 0, 3, 1), Span(4, 0, 4, 1), "with x:")
    assert edit_span(wrap) == Span(3, 0, 3, 1)
    assert edit_span(AddImport("torch")) is None
    assert str(EditError(wrap, "no")) == f"Wrap at line 3: no ({wrap})"
    assert str(EditError(AddImport("torch"), "no")).startswith("AddImport: no")
