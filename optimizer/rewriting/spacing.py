"""The spaces between the tokens of a line, as their author wrote them."""

from __future__ import annotations

import tokenize
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import pairwise

from .lines import NOT_CODE, tokens

_Token = tokenize.TokenInfo


def with_spaces_of(code: str, formatted: str) -> str:
    """``formatted``, the same code broken into lines anew, with the spaces of ``code`` where two tokens still share a line."""
    old, new = _tokens(code), _tokens(formatted)
    old_rows, new_rows = code.split("\n"), formatted.split("\n")
    spaces: dict[int, str] = {}  # behind each token, by its place in `new`
    for here, there in _shared(old, new):
        gaps = _gap(old, here, old_rows), _gap(new, there, new_rows)
        if gaps[0] is not None and gaps[1] is not None:
            spaces[there] = gaps[0]
    for place in sorted(spaces, reverse=True):
        row, start = new[place].end
        stop = new[place + 1].start[1]
        text = new_rows[row - 1]
        new_rows[row - 1] = text[:start] + spaces[place] + text[stop:]
    return "\n".join(new_rows)


def _tokens(code: str) -> list[_Token]:
    return [t for t in tokens(code) if t.type not in NOT_CODE or t.type == tokenize.COMMENT]


def _shared(old: list[_Token], new: list[_Token]) -> Iterator[tuple[int, int]]:
    """The places in both lists of tokens that are followed by the same one in both, or in ``new`` by a bracket before it."""
    texts = [[token.string for token in part] for part in (old, new)]
    blocks = SequenceMatcher(None, *texts, autojunk=False).get_matching_blocks()
    for block, following in pairwise(blocks):
        yield from ((block.a + i, block.b + i) for i in range(block.size - 1))
        after, added = block.a + block.size, block.b + block.size
        is_one = block.size and (following.a, following.b) == (after, added + 1)
        if is_one and new[added].string == "(":
            yield after - 1, added - 1


def _gap(stream: list[_Token], place: int, rows: list[str]) -> str | None:
    """The blanks behind a token; None where the next one is in another line, or is not told apart (inside of an f-string)."""
    first, second = stream[place], stream[place + 1]
    if first.end[0] != second.start[0]:
        return None
    gap = rows[first.end[0] - 1][first.end[1] : second.start[1]]
    return None if gap.strip(" \t") else gap
