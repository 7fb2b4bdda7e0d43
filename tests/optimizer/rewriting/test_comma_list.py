from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchopt_cli.optimizer.rewriting.comma_list import CommaList

GAP = st.sampled_from(["", " ", "\n    ", "  # one\n", "\n\n  # two\n  # three\n    ", "\r\n  "])
ITEM = st.sampled_from(
    [
        "a",
        "k=1",
        "(b)",
        "[1, 2]",
        "*c",
        "**d",
        "lambda x, y: (x, y)",
        "'),('",
        "e if f else g",
        "{1: 2}",
    ]
)


@st.composite
def lists(draw: st.DrawFn) -> tuple[str, list[str]]:
    items = draw(st.lists(ITEM, max_size=4))
    text = draw(GAP)
    for number, item in enumerate(items):
        last = number == len(items) - 1
        comma = "," if not last or draw(st.booleans()) else ""
        text += item + draw(GAP) + comma + draw(GAP)
    return f"({text})", items


@given(lists())
def test_what_is_parsed_is_written_again(case: tuple[str, list[str]]) -> None:
    text, items = case
    parsed = CommaList.parse(text)
    assert parsed.text == text
    assert list(parsed.items) == items


@given(lists(), st.data())
def test_inserted_items_stand_where_they_should(
    case: tuple[str, list[str]], data: st.DataObject
) -> None:
    text, items = case
    index = data.draw(st.integers(0, len(items)))
    result = CommaList.parse(text).insert(index, "new", "\n", "    ")
    assert list(CommaList.parse(result.text).items) == [*items[:index], "new", *items[index:]]
    assert result.text.count("#") == text.count("#")


@given(lists(), st.data())
def test_removed_items_are_gone_and_comments_on_own_lines_stay(
    case: tuple[str, list[str]], data: st.DataObject
) -> None:
    text, items = case
    if not items:
        return
    index = data.draw(st.integers(0, len(items) - 1))
    result = CommaList.parse(text).remove(index).text
    assert list(CommaList.parse(result).items) == [*items[:index], *items[index + 1 :]]
    if len(items) > 1:
        assert result.count("# three") == text.count("# three")


@given(lists(), st.data())
def test_replaced_items_change_nothing_else(
    case: tuple[str, list[str]], data: st.DataObject
) -> None:
    text, items = case
    if items:
        parsed = CommaList.parse(text)
        index = data.draw(st.integers(0, len(items) - 1))
        assert parsed.replace(index, "new").replace(index, items[index]) == parsed


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("(lambda: 0, 1)", ["lambda: 0", "1"]),
        ("(lambda a=lambda: 0, b=1: 0, 2)", ["lambda a=lambda: 0, b=1: 0", "2"]),
        ("{'a': lambda x, y: 0, **b}", ["'a': lambda x, y: 0", "**b"]),
        ("(a[1, 2:3], f(b, c))", ["a[1, 2:3]", "f(b, c)"]),
        ("(f'{a, b}', 'c, d')", ["f'{a, b}'", "'c, d'"]),
    ],
)
def test_only_separating_commas_separate(text: str, items: list[str]) -> None:
    assert list(CommaList.parse(text).items) == items
    assert ast.parse(text)


@pytest.mark.parametrize(
    ("text", "index", "expected"),
    [
        ("(a,\n b,\n c)", 1, "(a,\n new,\n b,\n c)"),
        ("(a, b,\n  cccccc, d)", 2, "(a, b, new,\n  cccccc, d)"),
        ("(aaa, bbbbbb,\n c, d)", 2, "(aaa, bbbbbb,\n new, c, d)"),
        ("(\n a, b,\n ccc, d\n)", 2, "(\n a, b, new,\n ccc, d\n)"),
        ("(a, b,  # two\n c, d)", 2, "(a, b,  # two\n new,\n c, d)"),
    ],
)
def test_an_item_between_two_lines_of_several_goes_to_the_shorter(
    text: str, index: int, expected: str
) -> None:
    assert CommaList.parse(text).insert(index, "new", "\n", "    ").text == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(\n    a, bbbb,\n    c, dddd)", "(\n    a, bbbb,\n    c, dddd,\n    new)"),
        ("(\n    a, bbbb,\n    c, d)", "(\n    a, bbbb,\n    c, d, new)"),
        ("(\n    a, bbbb,\n    c, dddd\n)", "(\n    a, bbbb,\n    c, dddd, new\n)"),
        ("(a, bbbb,\n  c, dddddd)", "(a, bbbb,\n  c, dddddd,\n  new)"),
        ("(a, bbbb, c, dddddddddd)", "(a, bbbb, c, dddddddddd, new)"),
        ("(\n    a, bbbb,\n    c, dddd  # d\n)", "(\n    a, bbbb,\n    c, dddd, new  # d\n)"),
        ("(\n    a, bbbb, cccc, dddd)", "(\n    a, bbbb, cccc, dddd,\n    new)"),
        ("(\n    a, bbbb, cccc\n)", "(\n    a, bbbb, cccc, new\n)"),
        ("(\n    a, bbbb, cccc,\n    dd)", "(\n    a, bbbb, cccc,\n    dd, new)"),
        ("(a, bbbb,\n ccccc)", "(a, bbbb,\n ccccc, new)"),
        (
            "(\n    a([\n        1,\n    ]), b, c\n)",
            "(\n    a([\n        1,\n    ]), b, c,\n    new\n)",
        ),
        ("(\n    a([\n        1,\n    ]), b\n)", "(\n    a([\n        1,\n    ]), b, new\n)"),
        ("(\n    a,\n    b)", "(\n    a,\n    b,\n    new)"),
        ("(\n    a, b,\n    c # c\n)", "(\n    a, b,\n    c, # c\n    new\n)"),
        ("(a, b,\n    c,\n    d,\n)", "(a, b,\n    c,\n    d,\n    new,\n)"),
        ("(a, b,\n    c, d,\n)", "(a, b,\n    c, d, new,\n)"),
    ],
)
def test_a_line_that_is_full(text: str, expected: str) -> None:
    """The longest line may have 16 columns; what stands in one line alone, also one between the brackets, is broken as a whole, elsewhere."""
    assert (
        CommaList.parse(text).insert(len(CommaList.parse(text).items), "new", "\n", "    ", 16).text
        == expected
    )
