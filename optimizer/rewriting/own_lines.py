"""Gives statements that share a line with others lines of their own, where an edit needs them to have one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from .edits import Edit, InsertAfter, InsertBefore, RemoveStatement, ReplaceStatement, Span, Wrap
from .lines import indent, split_lines
from .rewrites import EditError
from .source_tree import SourceTree
from .style import Style


@dataclass(frozen=True)
class _Splice:
    """``text[start:end]`` becomes ``new``."""

    start: int
    end: int
    new: str


def give_own_lines(
    source: SourceTree, edits: Sequence[Edit], style: Style
) -> tuple[SourceTree, list[Edit]]:
    """``source`` with lines split as ``edits`` need it, and the edits moved to where their targets are now.

    ``a; b`` becomes two lines, ``if x: a`` a header and a block, ``elif`` an ``else:`` with an ``if`` inside.
    """
    while splices := _elif_splices(source, edits, style):
        source, edits = _apply(source, edits, splices)
    splices = sorted(set(_line_splices(source, edits, style)), key=lambda splice: splice.start)
    return _apply(source, edits, splices) if splices else (source, list(edits))


def statement(source: SourceTree, edit: Edit, span: Span) -> ast.stmt:
    """The statement an edit is about. Raises EditError where there is none."""
    found = source.find(ast.stmt, span)
    if found is None:
        raise EditError(edit, "no statement there")
    return found


def _elif_splices(source: SourceTree, edits: Iterable[Edit], style: Style) -> list[_Splice]:
    """What turns the first ``elif`` that is a target into ``else:`` and ``if``."""
    for edit in edits:
        for span in _statement_spans(edit):
            target = statement(source, edit, span)
            start, _ = source.range(target)
            if isinstance(target, ast.If) and source.text.startswith("elif", start):
                return _open_elif(source, target, style)
    return []


def _open_elif(source: SourceTree, target: ast.If, style: Style) -> list[_Splice]:
    start, _ = source.range(target)
    prefix = source.prefix(target)
    first, last = target.lineno, source.last_line(target)
    opened = "else:" + style.newline + prefix + style.indent
    splices = [_Splice(start, start, opened), _Splice(start, start + len("el"), "")]
    block = source.text[source.starts[first - 1] : source.starts[last]].replace("elif", "if  ", 1)
    shifted = split_lines(indent(block, prefix, style.indent))
    for line, row in enumerate(shifted[1:], first + 1):
        old = source.lines[line - 1]
        if row != old:
            at = source.starts[line - 1] + (len(prefix) if old.startswith(prefix) else 0)
            splices.append(_Splice(at, at, style.indent))
    return splices


def _line_splices(source: SourceTree, edits: Sequence[Edit], style: Style) -> Iterator[_Splice]:
    for edit in edits:
        if isinstance(edit, RemoveStatement) or not (spans := _statement_spans(edit)):
            continue
        first, last = statement(source, edit, spans[0]), statement(source, edit, spans[-1])
        if isinstance(edit, ReplaceStatement) and _fits_in_line(edit.code):
            continue
        in_suite = not source.starts_line(source.blocks[first][0])
        if in_suite:
            yield _before(source, source.blocks[first][0], style.indent, style)
        extra = style.indent if in_suite else ""
        if not source.starts_line(first) and not isinstance(edit, InsertAfter):
            yield _before(source, first, extra, style)
        if not source.ends_line(last) and not isinstance(edit, InsertBefore):
            block = source.blocks[last]
            yield _before(source, block[block.index(last) + 1], extra, style)


def _fits_in_line(code: str) -> bool:
    body = ast.parse(code.strip()).body
    simple = all(not hasattr(statement, "body") for statement in body)
    return simple and len(body) == 1 and "\n" not in code.strip()


def _before(source: SourceTree, target: ast.stmt, extra: str, style: Style) -> _Splice:
    """The line break before ``target``, in place of a semicolon or behind a header's colon."""
    start, _ = source.range(target)
    before = source.text[:start].rstrip(" \t\f\r\n\\")
    end = len(before)
    if before.endswith(";"):
        end = len(before[:-1].rstrip(" \t\f\r\n\\"))
    first_line, _ = source.logical_lines[target.lineno]
    header = source.lines[first_line - 1]
    prefix = header[: len(header) - len(header.lstrip(" \t"))]
    return _Splice(end, start, style.newline + prefix + extra)


def _statement_spans(edit: Edit) -> tuple[Span, ...]:
    match edit:
        case Wrap():
            return edit.first, edit.last
        case InsertBefore() | InsertAfter() | ReplaceStatement() | RemoveStatement():
            return (edit.statement,)
        case _:
            return ()


def _apply(
    source: SourceTree, edits: Sequence[Edit], splices: Sequence[_Splice]
) -> tuple[SourceTree, list[Edit]]:
    parts: list[str] = []
    done = 0
    for splice in splices:
        parts += [source.text[done : splice.start], splice.new]
        done = splice.end
    moved = SourceTree.parse("".join([*parts, source.text[done:]]))
    return moved, [_move(edit, source, moved, splices) for edit in edits]


def _move(edit: Edit, old: SourceTree, new: SourceTree, splices: Sequence[_Splice]) -> Edit:
    def place(line: int, column: int) -> int:
        offset = old.starts[line - 1] + column
        return offset + sum(
            len(splice.new) - (splice.end - splice.start)
            for splice in splices
            if splice.end <= offset
        )

    spans = {
        field.name: new.span(place(span.line, span.column), place(span.end_line, span.end_column))
        for field in fields(edit)
        if isinstance(span := getattr(edit, field.name), Span)
    }
    return replace(edit, **spans)
