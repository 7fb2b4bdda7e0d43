"""Lines that two texts have in common."""

from __future__ import annotations

from difflib import SequenceMatcher

from hypothesis import given
from hypothesis import strategies as st

from torchopt_cli.optimizer.rewriting import line_matching
from torchopt_cli.optimizer.rewriting.line_matching import same_runs

LINES = st.lists(st.sampled_from("abcdefgh"), max_size=12)


@given(LINES, LINES)
def test_what_is_told_to_be_the_same_is(old: list[str], new: list[str]) -> None:
    """In order, without overlaps, and as long as it goes; also where the texts are cut at their single lines."""
    most = line_matching._MANY_PAIRS  # pyright: ignore[reportPrivateUsage]
    for pairs in (most, -1):
        line_matching._MANY_PAIRS = pairs  # pyright: ignore[reportPrivateUsage]
        try:
            runs = same_runs(old, new)
        finally:
            line_matching._MANY_PAIRS = most  # pyright: ignore[reportPrivateUsage]
        at, there = 0, 0
        for number, (a, b, size) in enumerate(runs):
            assert size
            assert a >= at
            assert b >= there
            assert number == 0 or (a, b) != (at, there)
            assert old[a : a + size] == new[b : b + size]
            at, there = a + size, b + size


def test_an_ordinary_text_is_matched_as_difflib_does() -> None:
    old = list("import a|def f:|  x|  return x||def g:|  y|  return y|".split("|"))
    new = list("import a|import b|def f:|  x|  return x||@d|def g:|  z|  return y|".split("|"))
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    assert same_runs(old, new) == [tuple(block) for block in blocks if block.size]


def test_a_long_table_between_two_changes_is_one_run() -> None:
    """Each of its lines is equal to all others: a search over pairs would take minutes."""
    table = ["    1,"] * 40_000
    old = ["import torch", "x = [", *table, "]", "f(x)"]
    new = ["import torch", "import os", "x = [", *table, "]", "with g():", "    f(x)"]
    assert same_runs(old, new) == [(0, 0, 1), (1, 2, 40_002)]
