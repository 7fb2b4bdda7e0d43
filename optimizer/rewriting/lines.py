"""Lines of Python source: where they end, what is inside a string, how they are indented.

Lines are those Python counts: ``\\r\\n``, ``\\r`` and ``\\n`` end one, a form feed does not.
"""

from __future__ import annotations

import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from itertools import accumulate

TAB_WIDTH = 4
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_INDENTATION = re.compile(r"(?:[ \t]*\f)?([ \t]*)")  # a form feed sets the column back to zero
_OPENS_STRING = frozenset({"FSTRING_START", "TSTRING_START"})  # from Python 3.12 and 3.14 on
_CLOSES_STRING = frozenset({"FSTRING_END", "TSTRING_END"})
NOT_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


def split_lines(text: str) -> list[str]:
    """The lines of ``text``, each with its line end."""
    return _LINE.findall(text)


def line_starts(text: str) -> list[int]:
    """The offset of every line of ``text``, and of its end."""
    return [0, *accumulate(len(line) for line in split_lines(text))]


def width(text: str) -> int:
    """How many columns ``text`` takes."""
    return len(text.expandtabs(TAB_WIDTH))


def line_end(line: str) -> str:
    """What ends ``line``: ``\\r\\n``, ``\\r``, ``\\n`` or nothing."""
    return line[len(line.rstrip("\r\n")) :]


def with_newlines(text: str, newline: str) -> str:
    """``text`` with every line ended by ``newline``."""
    return text if newline == "\n" else text.replace("\n", newline)


def tokens(text: str) -> list[tokenize.TokenInfo]:
    """The tokens of ``text``; the positions are those of Python's lines.

    Raises SyntaxError or tokenize.TokenError where ``text`` cannot be split into tokens.
    """
    lines = [re.sub(r"\r\n|\r", "\n", line) for line in split_lines(text)]
    return list(tokenize.generate_tokens(io.StringIO("".join(lines), newline="\n").readline))


def code_lines(stream: list[tokenize.TokenInfo]) -> set[int]:
    """The numbers of the lines that hold more than a comment or (part of) a string."""
    return {
        token.start[0]
        for token in stream
        if token.type not in NOT_CODE and token.type != tokenize.STRING
    }


def lines_inside_strings(stream: list[tokenize.TokenInfo]) -> set[int]:
    """The numbers of the lines that begin inside a string: their indentation is its content."""
    inside: set[int] = set()
    opened: list[int] = []
    for token in stream:
        name = tokenize.tok_name[token.type]
        if name == "STRING":
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif name in _OPENS_STRING:
            opened.append(token.start[0])
        elif name in _CLOSES_STRING:
            inside.update(range(opened.pop() + 1, token.end[0] + 1))
    return inside


def indentation(line: str) -> str:
    """The white space that decides in which block ``line`` is."""
    match = _INDENTATION.match(line)
    return match[1] if match else ""


def indent(block: str, prefix: str, unit: str) -> str:
    """``block``, whole lines all indented by at least ``prefix``, one ``unit`` deeper.

    Blank lines and the insides of strings stay as they are.
    """
    # Without a header above it, an indented block is no Python.
    opening = "if 1:\n" if prefix else ""
    inside = lines_inside_strings(tokens(opening + block))
    first = 2 if prefix else 1
    return "".join(
        line if number in inside or not line.strip() else _shift(line, prefix, unit)
        for number, line in enumerate(split_lines(block), first)
    )


def _shift(line: str, prefix: str, unit: str) -> str:
    match = _INDENTATION.match(line)
    at = match.start(1) if match else 0
    if line.startswith(prefix, at):
        at += len(prefix)
    return line[:at] + unit + line[at:]


def reindent(code: str, prefix: str, unit: str) -> str:
    """``code``, indented as it may be, as a block at ``prefix`` with levels of ``unit``.

    The lines of the result end in ``\\n``, the last one not. Inside strings nothing changes.
    """
    code = code.strip("\n")
    if code[:1].isspace():
        code = textwrap.dedent(code)
    stream = tokens(code)
    inside = lines_inside_strings(stream)
    own = next((len(token.string) for token in stream if token.type == tokenize.INDENT), 4)
    starts = {first for first, _ in logical_lines(stream)}
    rows: list[str] = []
    base = 0
    for number, row in enumerate(code.split("\n"), 1):
        text = row.lstrip(" \t")
        column = len(row) - len(text)
        if number in inside or not text:
            rows.append(row if number in inside else "")
            continue
        if number in starts:
            base = column
        beyond = max(column - base, 0)
        # Inside brackets, what goes on by whole levels is indented and the rest is aligned.
        levels, spaces = divmod(beyond, own) if beyond % own == 0 else (0, beyond)
        levels += min(base, column) // own
        rows.append(prefix + unit * levels + " " * spaces + text)
    return "\n".join(rows)


def logical_lines(stream: list[tokenize.TokenInfo]) -> Iterator[tuple[int, int]]:
    """First and last line of every logical line."""
    first: int | None = None
    for token in stream:
        if first is None and token.type not in NOT_CODE:
            first = token.start[0]
        elif first is not None and token.type == tokenize.NEWLINE:
            yield first, token.start[0]
            first = None
