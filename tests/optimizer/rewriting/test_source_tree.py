from __future__ import annotations

import ast

import pytest

from torchopt_cli.optimizer.rewriting.edits import Span
from torchopt_cli.optimizer.rewriting.source_tree import SourceTree, blocks_of

TEXT = """\
# marks
x = 1
# leads f

# leads f directly
@decorator
# about f
def f():
    a(); b()
    # deep

# shallow
if x: c()
else:
    d()
    # ends
"""


def tree_and_statements() -> tuple[SourceTree, dict[str, ast.stmt]]:
    source = SourceTree.parse(TEXT)
    return source, {ast.unparse(s).splitlines()[0]: s for s in source.blocks}


def test_the_lines_of_a_statement() -> None:
    source, found = tree_and_statements()
    f, branch = found["@decorator"], found["if x:"]
    lines = {
        name: (source.leading_line(s), source.first_line(s), source.last_line(s))
        for name, s in (("f", f), ("if", branch), ("a", found["a()"]), ("d", found["d()"]))
    }
    assert lines == {"f": (5, 6, 10), "if": (12, 13, 16), "a": (9, 9, 9), "d": (15, 15, 15)}
    assert source.last_line_of_block(found["d()"]) == 16
    assert source.last_line_of_block(found["x = 1"]) == 2
    assert source.text[source.start_with_decorators(f) :].startswith("@decorator")


def test_which_statements_have_lines_of_their_own() -> None:
    source, found = tree_and_statements()
    own = {n: (source.starts_line(s), source.ends_line(s)) for n, s in found.items()}
    assert own["a()"] == (True, False)
    assert own["b()"] == (False, True)
    assert own["c()"] == (False, True)
    assert own["d()"] == own["@decorator"] == own["x = 1"] == (True, True)
    assert source.statements_on_line(found["b()"]) == [found["a()"], found["b()"]]


def test_blank_lines() -> None:
    source, _ = tree_and_statements()
    assert (source.blank_lines_above(5), source.blank_lines_below(10)) == (1, 1)
    assert (source.blank_lines_above(1), source.blank_lines_below(16)) == (0, 0)


def test_every_block_is_known() -> None:
    text = """
try: a
except E: b
else: c
finally: d
match x:
    case 1: e
    case _: f
class A:
    async def g(self):
        async for h in i: j
        else: k
"""
    source = SourceTree.parse(text)
    names = [
        s.value.id
        for s in source.blocks
        if isinstance(s, ast.Expr) and isinstance(s.value, ast.Name)
    ]
    assert sorted(names) == ["a", "b", "c", "d", "e", "f", "j", "k"]
    assert [len(block) for block in blocks_of(source.tree)] == [3]


@pytest.mark.parametrize("offset", [0, 3, 8, 9, 10, 14])
def test_offsets_and_places_are_inverse(offset: int) -> None:
    source = SourceTree.parse("ä = 'ö'\r\né = 2\n")
    line, column = source.place(offset)
    assert source.starts[line - 1] + column == offset


def test_nodes_are_found_by_characters_and_not_by_bytes() -> None:
    source = SourceTree.parse("x = 'ö', y\n")
    found = source.find(ast.Name, Span(1, 9, 1, 10))
    assert found is not None
    assert found.id == "y"
    assert source.find(ast.Call, Span(1, 9, 1, 10)) is None
    assert source.find(ast.Name, Span(9, 9, 9, 10)) is None


def test_marks_at_the_top_lead_up_to_nothing() -> None:
    for text, line in (
        ("#!/bin/python\n# a\nx\n", 2),
        ("# -*- coding: utf-8 -*-\nx\n", 2),
        ("# a\nx\n", 1),
    ):
        source = SourceTree.parse(text)
        assert source.leading_line(source.tree.body[0]) == line
