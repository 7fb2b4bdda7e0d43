"""Checks, with a second parser, that a rewrite lost nothing but what it meant to change.

Edits are spliced into the text at positions of the standard library's `ast`. Before a file is written, LibCST, which
keeps comments and whitespace in its tree and indentation out of it, reads both texts: every statement on lines that no
edit touched has to be there again, comment for comment and space for space, however deep it is indented now.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .line_matching import same_runs
from .lines import split_lines

if TYPE_CHECKING:
    import libcst as cst

_CONTINUED = re.compile(r"(\\\r?\n|\\\r)[ \t\f]+")
"""A backslash at the end of a line, and how far the next one is indented."""


class LossError(ValueError):
    """A statement that no edit was about has changed; ``line`` is its 1-based line in the original."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def check_lossless(original: str, rewritten: str) -> None:
    """Raise :class:`LossError` when a statement outside all edits is not in ``rewritten`` as it was.

    A line counts as edited when it differs in more than its indentation. Does nothing for an original that LibCST
    cannot read (syntax newer than it knows).
    """
    import libcst as cst

    try:
        before = _statements(original)
    except cst.ParserSyntaxError:
        return
    try:
        after = _statements(rewritten)
    except cst.ParserSyntaxError as error:
        raise LossError(1, f"the rewritten file does not parse: {error.message}") from error
    places = _same_lines(original, rewritten)
    for line, (end, code) in before.items():
        now = places.get(line, 0)
        untouched = all(places.get(line + n) == now + n for n in range(end - line + 1))
        if untouched and after.get(now, (0, ""))[1] != code:
            raise LossError(line, "a statement that nothing was to change has changed")


def _statements(text: str) -> dict[int, tuple[int, str]]:
    """The statements of ``text`` that fill their lines, by first line: last line, and code without indentation."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider

    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    positions = wrapper.resolve(PositionProvider)
    plain = cst.Module([])
    found: dict[int, tuple[int, str]] = {}
    for node, place in positions.items():
        if isinstance(node, cst.SimpleStatementLine):
            statement = node.with_changes(leading_lines=())
            code = plain.code_for_node(statement)
            if _CONTINUED.search(code):
                code = plain.code_for_node(_unindented(statement))
            found[place.start.line] = (place.end.line, code)
    return found


def _unindented(statement: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
    """``statement`` with the lines behind its backslashes at the margin: LibCST takes their indentation for spaces in a line."""
    import libcst as cst
    from libcst import matchers

    def at_margin(space: cst.CSTNode, _: object) -> cst.SimpleWhitespace:
        assert isinstance(space, cst.SimpleWhitespace)
        return space.with_changes(value=_CONTINUED.sub(r"\1", space.value))

    continued = matchers.SimpleWhitespace(matchers.MatchIfTrue(lambda value: "\\" in value))
    found = matchers.replace(statement, continued, at_margin)
    assert isinstance(found, cst.SimpleStatementLine)
    return found


def _same_lines(original: str, rewritten: str) -> dict[int, int]:
    """Where each line that no edit touched stands now; both 1-based."""
    old = [line.strip() for line in split_lines(original)]
    new = [line.strip() for line in split_lines(rewritten)]
    return {
        here + offset + 1: there + offset + 1
        for here, there, size in same_runs(old, new)
        for offset in range(size)
    }
