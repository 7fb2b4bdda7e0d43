"""``# torchopt: ignore`` comments: the places where the user said no.

``# torchopt: ignore[no-grad, autocast] reason`` keeps the named transforms off the statement it
stands behind, ``# torchopt: ignore reason`` every transform, and ``# torchopt: ignore-file`` off
the whole file. A comment on a line of its own speaks for the statement below it.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..rewriting.edits import AddParameter, Edit, Span, Wrap
from ..rewriting.rewrites import edit_span

_COMMENT = r"#\s*torchopt:\s*ignore(?P<file>-file)?(?![\w-])\s*(?:\[(?P<names>[^\]]*)\])?[\s:,-]*(?P<reason>[^#]*)"
_INVISIBLE = frozenset(
    {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


@dataclass(frozen=True)
class Suppression:
    """One comment, for the lines ``first`` to ``last``; no ``names`` means every transform.

    ``line`` is where the comment stands. All lines are 1-based.
    """

    line: int
    first: int
    last: int
    names: frozenset[str]
    whole_file: bool
    reason: str

    def keeps_off(self, transform: str, spans: Iterable[Span]) -> bool:
        """Whether it forbids ``transform`` a change that looks at or edits ``spans`` of this file.

        A comment that names the transform holds wherever the change reaches over its statement; one
        that names none holds for changes of that statement itself, not for those that only move it
        (such as a ``with`` put around the loop it is in).
        """
        if self.names and transform not in self.names:
            return False
        if self.whole_file:
            return True
        if self.names:
            return any(span.line <= self.last and self.first <= span.end_line for span in spans)
        return any(self.first <= span.line <= self.last for span in spans)


@lru_cache(maxsize=64)
def suppressions(text: str) -> tuple[Suppression, ...]:
    """The suppressions in the comments (never in the strings) of a file that parses."""
    if "torchopt:" not in text:
        return ()
    return tuple(_found(text))


def edited_span(edit: Edit) -> Span | None:
    """The source an edit names, None for those that concern the file's imports."""
    match edit:
        case AddParameter(function=span):
            return Span(span.line, span.column, span.line, span.column)
        case Wrap(first=first, last=last):
            return Span(first.line, first.column, last.end_line, last.end_column)
        case _:
            return edit_span(edit)


def _found(text: str) -> Iterator[Suppression]:
    waiting: list[tokenize.TokenInfo] = []
    first: int | None = None
    for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
        if token.type == tokenize.COMMENT and re.search(_COMMENT, token.string):
            waiting.append(token)
        elif token.type == tokenize.NEWLINE:
            yield from (_suppression(comment, first or 1, token.start[0]) for comment in waiting)
            waiting, first = [], None
        elif token.type == tokenize.NL and first is None and not token.line.strip():
            yield from (
                _suppression(comment, comment.start[0], comment.start[0]) for comment in waiting
            )
            waiting = []
        elif first is None and token.type not in _INVISIBLE:
            first = token.start[0]
    yield from (_suppression(comment, comment.start[0], comment.start[0]) for comment in waiting)


def _suppression(comment: tokenize.TokenInfo, first: int, last: int) -> Suppression:
    match = re.search(_COMMENT, comment.string)
    assert match is not None
    names = frozenset(name.strip() for name in (match["names"] or "").split(",") if name.strip())
    return Suppression(
        line=comment.start[0],
        first=min(first, comment.start[0]),
        last=max(last, comment.start[0]),
        names=names,
        whole_file=match["file"] is not None,
        reason=match["reason"].strip(),
    )
