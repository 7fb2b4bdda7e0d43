from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchopt_cli.optimizer.rewriting.lines import (
    code_lines,
    indent,
    indentation,
    line_starts,
    lines_inside_strings,
    logical_lines,
    reindent,
    split_lines,
    tokens,
    width,
    with_newlines,
)


@given(st.text(st.sampled_from("a \t\f\v\x1c\x85\u2028\r\n")))
def test_splitting_loses_nothing_and_ends_lines_where_python_does(text: str) -> None:
    lines = split_lines(text)
    assert "".join(lines) == text
    as_python = text.replace("\r\n", "\n").replace("\r", "\n")
    assert len(lines) == as_python.count("\n") + (as_python[-1:] not in ("", "\n"))
    assert line_starts(text)[-1] == len(text)


def test_tokens_stand_where_they_do_in_the_text() -> None:
    text = "if x:\r\n\ty = '''\r\n''' # é\r\x0cz\n"
    names = {token.string: token.start for token in tokens(text)}
    assert names["y"] == (2, 1)
    assert names["# é"] == (3, 4)
    assert names["z"] == (4, 1)


def test_lines_inside_strings_are_those_whose_indentation_is_content() -> None:
    text = 'x = """a\nb\nc""", f"""{\ny\n}\n""", "d" \\\n  "e"\n"""f\n"""\n'
    assert lines_inside_strings(tokens(text)) == {2, 3, 4, 5, 6, 9}


def test_code_lines_are_not_comments_or_strings() -> None:
    assert code_lines(tokens("# a\nx = 1  # b\n'''\nc\n'''\n\ny(\n  # d\n)\n")) == {2, 7, 9}


def test_logical_lines_span_brackets_and_backslashes() -> None:
    text = "# a\nx = (\n  # b\n  1)\ny = 2 + \\\n  3; z = 4\nif a: b\n"
    assert list(logical_lines(tokens(text))) == [(2, 4), (5, 6), (7, 7)]


@pytest.mark.parametrize(
    ("block", "prefix", "unit", "result"),
    [
        ("a\n\nb\n", "", "  ", "  a\n\n  b\n"),
        ("  a\n# c\n  b", "  ", "\t", "  \ta\n\t# c\n  \tb"),
        ("x = '''\na'''\n", "", "    ", "    x = '''\na'''\n"),
        ("\ta(\n\t  b)\r\n", "\t", "\t", "\t\ta(\n\t\t  b)\r\n"),
        ("\x0ca\n", "", "  ", "\x0c  a\n"),
        ("a \\\n  + b\n", "", "  ", "  a \\\n    + b\n"),
    ],
)
def test_indent(block: str, prefix: str, unit: str, result: str) -> None:
    assert indent(block, prefix, unit) == result


@pytest.mark.parametrize(
    ("code", "prefix", "unit", "result"),
    [
        ("a", "  ", "  ", "  a"),
        ("\n    if a:\n        b\n", "", "  ", "if a:\n  b"),
        ("if a:\n  b\n", "\t", "\t", "\tif a:\n\t\tb"),
        ("f(\n    a,\n      b)\n", "  ", "  ", "  f(\n    a,\n        b)"),
        ("if a:\n    f(b,\n      c)\n", "", "\t", "if a:\n\tf(b,\n\t  c)"),
        ("x = '''\n  a\n'''\n", "    ", "    ", "    x = '''\n  a\n'''"),
        ("if a:\n    # b\n\n    c", "", "  ", "if a:\n  # b\n\n  c"),
    ],
)
def test_reindent(code: str, prefix: str, unit: str, result: str) -> None:
    assert reindent(code, prefix, unit) == result


def test_widths_and_indentation() -> None:
    assert (width("\ta"), width("  a"), width("")) == (5, 3, 0)
    assert indentation("\x0c\t x") == "\t "
    assert indentation("x ") == ""
    assert with_newlines("a\nb\n", "\r\n") == "a\r\nb\r\n"
