"""Which lines of a file belong together: logical lines, lines of code, lines that are nothing but a comment."""

from __future__ import annotations

import re
import sys
import tokenize
from dataclasses import dataclass

from .lines import NOT_CODE, code_lines, logical_lines, tokens

# Quotes cannot nest in f-strings before Python 3.12, so strings, comments and brackets can be told without more.
_PIECE = re.compile(
    r"""
      (?P<string>[rRbBuUfF]{0,2}(?:
          \"{3}(?:[^"\\]|\\.|"(?!""))*\"{3} | '{3}(?:[^'\\]|\\.|'(?!''))*'{3}
        | "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' ))
    | (?P<end>\r\n|\r|\n)
    | (?P<continued>\\(?:\r\n|\r|\n))
    | (?P<comment>\#[^\r\n]*)
    | (?P<open>[(\[{])
    | (?P<close>[)\]}])
    | (?P<other>[^\s"'\#()\[\]{}\\]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class LineStructure:
    """Lines by their number, from 1.

    ``logical`` holds the first and last line of every logical line, ``code`` the lines that hold more than a comment or
    (part of) a string, ``comments`` those that hold a comment alone.
    """

    logical: tuple[tuple[int, int], ...]
    code: frozenset[int]
    comments: frozenset[int]

    @classmethod
    def of(cls, text: str) -> LineStructure:
        """That of ``text``, which has to be Python."""
        # Before Python 3.12 the tokenizer is written in Python and takes ten times as long as this.
        return _scanned(text) if sys.version_info < (3, 12) else _tokenized(text)


def _tokenized(text: str) -> LineStructure:
    stream = tokens(text)
    touched = {
        line
        for token in stream
        if token.type not in NOT_CODE
        for line in (token.start[0], token.end[0])
    }
    comments = {token.start[0] for token in stream if token.type == tokenize.COMMENT}
    return LineStructure(
        tuple(logical_lines(stream)), frozenset(code_lines(stream)), frozenset(comments - touched)
    )


def _scanned(text: str) -> LineStructure:
    logical: list[tuple[int, int]] = []
    code: set[int] = set()
    touched: set[int] = set()
    comments: set[int] = set()
    line, depth = 1, 0
    first: int | None = None
    for piece in _PIECE.finditer(text):
        kind = piece.lastgroup
        if kind == "end":
            if first is not None and not depth:
                logical.append((first, line))
                first = None
            line += 1
        elif kind == "continued":
            line += 1
        elif kind == "comment":
            comments.add(line)
        else:
            first = first or line
            touched.add(line)
            if kind == "string":
                line += len(_LINE_END.findall(piece[0]))
                touched.add(line)
            else:
                code.add(line)
                depth += (kind == "open") - (kind == "close")
    if first is not None:
        logical.append((first, line))
    return LineStructure(tuple(logical), frozenset(code), frozenset(comments - touched))
