"""A file's text with its syntax tree: finds the node at a span, and the lines that belong to a statement."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias, TypeVar

from ..syntax_tree import syntax_tree, walk
from .edits import Span
from .line_structure import LineStructure
from .lines import indentation, line_starts, split_lines, width

Node = TypeVar("Node", bound=ast.AST)
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_MARK = re.compile(r"#!|#.*coding[:=]")
_BytePositions: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class SourceTree:
    """``text`` and the tree parsed from it. Lines are 1-based, offsets count characters of ``text``."""

    text: str
    tree: ast.Module

    @classmethod
    @lru_cache(maxsize=8)
    def parse(cls, text: str, path: str = "<text>") -> SourceTree:
        """Raises SyntaxError where ``text`` is no Python."""
        return cls(text, syntax_tree(text, path))

    @cached_property
    def lines(self) -> list[str]:
        return split_lines(self.text)

    @cached_property
    def starts(self) -> list[int]:
        """The offset of every line, and of the end of the text."""
        return line_starts(self.text)

    @cached_property
    def line_structure(self) -> LineStructure:
        return LineStructure.of(self.text)

    @cached_property
    def logical_lines(self) -> dict[int, tuple[int, int]]:
        """First and last line of the logical line that every line with code is part of."""
        return {
            line: (first, last)
            for first, last in self.line_structure.logical
            for line in range(first, last + 1)
        }

    @cached_property
    def _comments(self) -> dict[int, int]:
        """The lines that hold nothing but a comment, and the columns it is indented by."""
        return {
            line: width(indentation(self.lines[line - 1])) for line in self.line_structure.comments
        }

    @cached_property
    def _by_line(self) -> dict[int, list[ast.expr | ast.stmt]]:
        found: dict[int, list[ast.expr | ast.stmt]] = {}
        for node in walk(self.tree):
            if isinstance(node, (ast.expr, ast.stmt)):
                found.setdefault(node.lineno, []).append(node)
        return found

    @cached_property
    def inside_format_strings(self) -> set[ast.AST]:
        """The nodes that are part of an f-string."""
        return {
            node
            for string in walk(self.tree)
            if isinstance(string, ast.JoinedStr)
            for node in walk(string)
            if node is not string
        }

    @cached_property
    def blocks(self) -> dict[ast.stmt, list[ast.stmt]]:
        """The block that every statement is in."""
        found: dict[ast.stmt, list[ast.stmt]] = {}
        owners: list[ast.AST] = [self.tree]
        while owners:
            owner = owners.pop()
            for block in blocks_of(owner):
                found.update(dict.fromkeys(block, block))
                owners += block
            owners += getattr(owner, "handlers", []) + getattr(owner, "cases", [])
        return found

    def find(self, kind: type[Node] | tuple[type[Node], ...], span: Span) -> Node | None:
        """The node of ``kind`` that stands exactly at ``span``."""
        if span.end_line > len(self.lines):
            return None
        position = (
            span.line,
            self._bytes_before(span.line, span.column),
            span.end_line,
            self._bytes_before(span.end_line, span.end_column),
        )
        for node in self._by_line.get(span.line, ()):
            if isinstance(node, kind) and _positions(node) == position:
                return node
        return None

    def _bytes_before(self, line: int, column: int) -> int:
        text = self.lines[line - 1]
        return column if text.isascii() else len(text[:column].encode())

    def offset(self, line: int, byte_column: int) -> int:
        """The offset of a position as :mod:`ast` gives it."""
        text = self.lines[line - 1]
        if not text.isascii():
            byte_column = len(text.encode()[:byte_column].decode(errors="replace"))
        return self.starts[line - 1] + byte_column

    def range(self, node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        """The offsets of a node, without its decorators."""
        line, column, end_line, end_column = _positions(node)
        return self.offset(line, column), self.offset(end_line, end_column)

    def code(self, node: ast.expr | ast.stmt | ast.alias) -> str:
        start, end = self.range(node)
        return self.text[start:end]

    def span(self, start: int, end: int) -> Span:
        """The span between two offsets."""
        return Span(*self.place(start), *self.place(end))

    def place(self, offset: int) -> tuple[int, int]:
        """The line and column of an offset."""
        line = min(bisect_right(self.starts, offset), max(len(self.lines), 1))
        return line, offset - self.starts[line - 1]

    # The lines of a statement.

    def prefix(self, statement: ast.stmt) -> str:
        """The indentation of the line ``statement`` begins on."""
        return indentation(self.lines[statement.lineno - 1])

    def first_line(self, statement: ast.stmt) -> int:
        """The line ``statement``, or its first decorator, begins on."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        return min([statement.lineno, *(decorator.lineno for decorator in decorators)])

    def start_with_decorators(self, statement: ast.stmt) -> int:
        """The offset of ``statement``, or of the ``@`` of its first decorator."""
        line = self.first_line(statement)
        if line == statement.lineno:
            return self.range(statement)[0]
        return self.text.index("@", self.starts[line - 1])

    def leading_line(self, statement: ast.stmt) -> int:
        """The line from which on comments lead up to ``statement``, no blank line between.

        What must stay at the top of the file, ``#!`` and an encoding cookie, leads up to nothing.
        """
        line, column = self.first_line(statement), width(self.prefix(statement))
        while self._comments.get(line - 1, column + 1) <= column:
            if line <= 3 and _MARK.match(self.lines[line - 2]):
                break
            line -= 1
        return line

    def last_line(self, statement: ast.stmt) -> int:
        """The last line of ``statement``, with the comments that end its last block."""
        line = self.logical_lines[end_line(statement)][1]
        if not (blocks_of(statement) or isinstance(statement, ast.Match)):
            return line
        return self._last_comment(line, width(self.prefix(statement)) + 1)

    def last_line_of_block(self, statement: ast.stmt) -> int:
        """The last line of ``statement``; with the comments behind it, where it ends its block."""
        line = self.last_line(statement)
        if self.blocks[statement][-1] is not statement:
            return line
        return self._last_comment(line, width(self.prefix(statement)))

    def _last_comment(self, line: int, least_column: int) -> int:
        """The last of the comments below ``line`` that are indented far enough to belong to it."""
        last = line
        while line < len(self.lines):
            line += 1
            if line in self._comments:
                if self._comments[line] < least_column:
                    break
                last = line
            elif self.lines[line - 1].strip():
                break
        return last

    def statements_on_line(self, statement: ast.stmt) -> list[ast.stmt]:
        """``statement`` and those it shares its line with, separated by semicolons."""
        line, _ = self.logical_lines[self.first_line(statement)]
        return [
            sibling
            for sibling in self.blocks[statement]
            if self.logical_lines[self.first_line(sibling)][0] == line
        ]

    def starts_line(self, statement: ast.stmt) -> bool:
        line = self.first_line(statement)
        start = self.starts[statement.lineno - 1]
        return (
            self.logical_lines[line][0] == line
            and not self.text[start : self.range(statement)[0]].strip()
        )

    def ends_line(self, statement: ast.stmt) -> bool:
        block = self.blocks[statement]
        index = block.index(statement) + 1
        return index == len(block) or self.starts_line(block[index])

    def blank_lines_above(self, line: int) -> int:
        count = 0
        while line - count > 1 and not self.lines[line - count - 2].strip():
            count += 1
        return count

    def blank_lines_below(self, line: int) -> int:
        count = 0
        while line + count < len(self.lines) and not self.lines[line + count].strip():
            count += 1
        return count


def blocks_of(owner: ast.AST) -> list[list[ast.stmt]]:
    """The blocks directly inside ``owner``; ``except`` and ``case`` clauses own theirs."""
    blocks: list[list[ast.stmt] | None] = [
        getattr(owner, name, None) for name in ("body", "orelse", "finalbody")
    ]
    return [block for block in blocks if block]


def end_line(node: ast.expr | ast.stmt | ast.alias) -> int:
    return node.end_lineno or node.lineno


def _positions(node: ast.expr | ast.stmt | ast.alias) -> _BytePositions:
    return node.lineno, node.col_offset, end_line(node), node.end_col_offset or 0
