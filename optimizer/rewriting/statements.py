"""The edits of statements: what is put above, below, around and in place of them."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .edits import (
    AddContext,
    Decorate,
    Edit,
    InsertAfter,
    InsertBefore,
    RemoveStatement,
    ReplaceStatement,
    Wrap,
)
from .formatting import fit, lay_out, longest_line, without_comment
from .lines import indent, indentation, line_end, reindent, tokens, width
from .own_lines import statement
from .rewrites import EditError, Rank, Rewrite
from .source_tree import SourceTree, blocks_of
from .style import Style

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_CLAUSE = re.compile(r"(?:except|else|elif|finally)\b")
_A_LITTLE_LONGER = 1.1
"""A line that was too long before may grow by a tenth, such as a signature by one more parameter."""


@dataclass(frozen=True, eq=False)
class StatementEdits:
    """Edits of one file whose statements all have lines of their own (see :mod:`.own_lines`)."""

    source: SourceTree
    edits: Sequence[Edit]
    style: Style

    def rewrites(self) -> Iterator[Rewrite]:
        """What the edits of statements do to the text, and what the new line lengths ask for."""
        for target, (before, after) in self._around.items():
            outside = [e for e in before if e.outside and target in self._headed]
            inside = [e for e in before if e not in outside]
            if inside or after:
                yield self._insertion(target, inside, after)
            if outside:
                yield self._above_header(target, outside)
        for target, edit in self._removed.items():
            yield from self._removal(target, edit)
        for edit in self.edits:
            match edit:
                case ReplaceStatement():
                    yield self._replacement(edit)
                case Decorate():
                    yield self._decoration(edit)
                case Wrap():
                    yield self._wrapping(edit)
                case AddContext():
                    yield self._added_context(edit)
                case _:
                    pass

    def layout(self, edited: set[int]) -> Iterator[Rewrite]:
        """Breaks the lines that become too long: those of the ``edited`` offsets, and those indented."""
        source = self.source
        lines = {source.place(offset)[0] for offset in edited}
        logical = {source.logical_lines[line] for line in lines if line in source.logical_lines}
        wrapped = {
            source.logical_lines[line]
            for first, last in self._wrapped
            for line in range(first, last + 1)
            if line in source.logical_lines
        }
        for first, last in sorted(logical | wrapped):
            yield self._fitting(first, last, (first, last) in logical)

    def _fitting(self, first: int, last: int, edited: bool) -> Rewrite:
        prefix = indentation(self.source.lines[first - 1])
        start = self.source.starts[first - 1]
        start += len(self.source.lines[first - 1]) - len(self.source.lines[first - 1].lstrip())
        end = self.source.starts[last] - len(line_end(self.source.lines[last - 1]))
        old = longest_line(self.source.text[start:end], prefix)
        extra = self._columns_added(first)

        def function(text: str) -> str:
            if not edited and old + extra <= self.style.indented_length:
                return text
            longest = longest_line(text, prefix)
            becomes_long = old <= self.style.line_length
            if becomes_long:
                return fit(text, prefix, self.style, extra)
            # Broken by hand into lines that were too long before, or never broken: the layout is its author's.
            if not edited or longest <= (self._longest if first < last else old * _A_LITTLE_LONGER):
                return text
            # A comment that stood out before may stand out again: only the code is broken.
            code, comment = without_comment(text)
            return fit(code, prefix, self.style, extra) + comment

        return Rewrite(start, end, function, None, Rank.LAYOUT)

    @cached_property
    def _longest(self) -> int:
        """The columns of the longest line of the file."""
        return max(width(line.rstrip()) for line in self.source.lines)

    @cached_property
    def _wrapped(self) -> list[tuple[int, int]]:
        """First and last line of what every Wrap indents."""
        return [self._wrapped_lines(edit) for edit in self.edits if isinstance(edit, Wrap)]

    def _columns_added(self, line: int) -> int:
        """How many columns further the wraps around ``line`` indent it."""
        return width(self.style.indent) * sum(
            first <= line <= last for first, last in self._wrapped
        )

    def _lines(self, first: int, last: int) -> tuple[int, int]:
        return self.source.starts[first - 1], self.source.starts[last]

    # Insertions

    @cached_property
    def _headed(self) -> dict[ast.stmt, list[tuple[int, int]]]:
        """First and last line of each Wrap that begins with a statement, for those that one begins with."""
        headed: dict[ast.stmt, list[tuple[int, int]]] = {}
        for edit in self.edits:
            if isinstance(edit, Wrap):
                first = self._wrapped_statements(edit)[0]
                headed.setdefault(first, []).append(self._wrapped_lines(edit))
        return headed

    @cached_property
    def _around(self) -> dict[ast.stmt, tuple[list[InsertBefore], list[InsertAfter]]]:
        """What is inserted above and below each statement."""
        around: dict[ast.stmt, tuple[list[InsertBefore], list[InsertAfter]]] = {}
        for edit in self.edits:
            if isinstance(edit, InsertBefore | InsertAfter):
                target = statement(self.source, edit, edit.statement)
                before, after = around.setdefault(target, ([], []))
                if isinstance(edit, InsertBefore):
                    before.append(edit)
                else:
                    after.append(edit)
        return around

    def _insertion(
        self, target: ast.stmt, before: list[InsertBefore], after: list[InsertAfter]
    ) -> Rewrite:
        source, newline = self.source, self.style.newline
        block = source.blocks[target]
        # Where a header comes between a statement and the comment above it, so does what is inserted: inside of what is headed.
        headers = [first for first, _ in self._headed.get(target, ())]
        first = max([source.leading_line(target), *headers])
        last = source.last_line(target)
        last_end = line_end(source.lines[last - 1])
        blank = 2 if block is source.tree.body else 1
        target_is_definition = isinstance(target, _DEFINITIONS)
        below, below_definitions = self._new_lines(target, after)

        def function(text: str) -> str:
            if before:
                text = self._put_above(target, before, first, text)
            if after:
                apart = blank if target_is_definition or below_definitions[0] else 0
                if text:  # else the statement is removed
                    text = text.removesuffix(last_end) + newline * (1 + apart)
                text += below + last_end
                if below_definitions[1] and target is not block[-1]:
                    text += newline * max(0, blank - source.blank_lines_below(last))
            return text

        return Rewrite(*self._lines(first, last), function, (*before, *after)[0], Rank.SURROUNDING)

    def _above_header(self, target: ast.stmt, edits: list[InsertBefore]) -> Rewrite:
        """What is inserted above all that is wrapped from ``target`` on."""
        wrapped = self._headed[target]
        first, last = min(first for first, _ in wrapped), max(last for _, last in wrapped)

        def function(text: str) -> str:
            return self._put_above(target, edits, first, text)

        return Rewrite(*self._lines(first, last), function, edits[0], Rank.ABOVE_WRAP)

    def _put_above(
        self, target: ast.stmt, edits: Sequence[InsertBefore], first: int, text: str
    ) -> str:
        """``text``, which begins at the line ``first`` with ``target`` or its header, with the new lines above it."""
        source, newline = self.source, self.style.newline
        block = source.blocks[target]
        blank = 2 if block is source.tree.body else 1
        above, (begins, ends) = self._new_lines(target, edits)
        opens = first < source.first_line(target) and source.blank_lines_above(first) > 0
        apart = blank if isinstance(target, _DEFINITIONS) or ends else int(edits[-1].apart or opens)
        text = above + newline * (1 + apart) + text
        wanted = blank if begins else int(edits[0].apart)
        if target is not block[0]:
            text = newline * max(0, wanted - source.blank_lines_above(first)) + text
        return text

    def _new_lines(
        self, target: ast.stmt, edits: Sequence[InsertBefore | InsertAfter]
    ) -> tuple[str, tuple[bool, bool]]:
        """The inserted lines, and whether they begin and end with a function or class."""
        prefix, extra = self.source.prefix(target), self._columns_added(target.lineno)
        codes = [reindent(edit.code, "", " " * 4) for edit in edits]
        if not codes:
            return "", (False, False)
        new = ast.parse("\n".join(codes)).body
        newline = self.style.newline
        style = replace(self.style, indent=self._unit(target))
        laid_out = [lay_out(code, prefix, style, extra) for code in codes]
        for index, edit in enumerate(edits[:-1]):
            if isinstance(edit, InsertBefore) and edit.apart:
                defines = isinstance(ast.parse(codes[index]).body[-1], _DEFINITIONS)
                laid_out[index] += newline * (2 if defines and not prefix else 1)
        text = newline.join(laid_out)
        return text, (isinstance(new[0], _DEFINITIONS), isinstance(new[-1], _DEFINITIONS))

    # Removals and replacements

    @cached_property
    def _removed(self) -> dict[ast.stmt, RemoveStatement]:
        return {
            statement(self.source, edit, edit.statement): edit
            for edit in self.edits
            if isinstance(edit, RemoveStatement)
        }

    @cached_property
    def _placeholders(self) -> set[ast.stmt]:
        """The removed statements that become ``pass``: the last one of a block that would be empty."""
        groups = [self.source.blocks[target] for target in self._removed]
        groups += [self._wrapped_statements(edit) for edit in self.edits if isinstance(edit, Wrap)]
        return {
            group[-1]
            for group in groups
            if group is not self.source.tree.body
            and all(target in self._removed and target not in self._around for target in group)
        }

    def _removal(self, target: ast.stmt, edit: RemoveStatement) -> Iterator[Rewrite]:
        source = self.source
        first, last = source.first_line(target), source.last_line(target)
        row = source.statements_on_line(target)
        index = row.index(target)
        kept = [i for i, s in enumerate(row) if s not in self._removed or s in self._placeholders]
        start, end = source.range(target)
        new = ""
        if target in self._placeholders:
            start, new = source.start_with_decorators(target), "pass"
        elif any(i > index for i in kept):
            end = source.range(row[index + 1])[0]
        elif kept:
            start = source.range(row[index - 1])[1]
        elif index > 0:
            return  # goes with the first statement of its line
        else:
            start, end = self._lines(first, last)
            if target not in self._around:
                yield self._blank_lines_behind(self._first_of_run(target), last, edit.closes_up)
        yield Rewrite(start, end, lambda _: new, edit, Rank.STATEMENT, replaces=True)

    def _first_of_run(self, target: ast.stmt) -> int:
        """The first line of the statements that are removed down to ``target``, each directly above the next."""
        source, block = self.source, self.source.blocks[target]
        first = source.first_line(target)
        for above in reversed(block[: block.index(target)]):
            if above not in self._removed or source.last_line(above) != first - 1:
                break
            first = source.first_line(above)
        return first

    def _blank_lines_behind(self, first: int, last: int, closes_up: bool) -> Rewrite:
        """Leaves of the blank lines above and below what is removed only the larger number; none to close up comments above.

        Nor those that would end a block in front of ``except`` or ``else``, or the file.
        """
        source = self.source
        below, above = source.blank_lines_below(last), source.blank_lines_above(first)
        if not below and self._ends_with(last):
            return Rewrite(
                *self._lines(first - above, first - 1), lambda _: "", None, Rank.STATEMENT
            )
        commented = closes_up and not above and source.lines[first - 2].lstrip().startswith("#")
        surplus = below if first == 1 or commented else min(above, below)
        return Rewrite(*self._lines(last + 1, last + surplus), lambda _: "", None, Rank.STATEMENT)

    def _ends_with(self, line: int) -> bool:
        """Whether the file ends with ``line``, or the next one begins another block of the same statement."""
        rest = "".join(self.source.lines[line : line + 1]).strip()
        return not rest or _CLAUSE.match(rest) is not None

    def _replacement(self, edit: ReplaceStatement) -> Rewrite:
        target = statement(self.source, edit, edit.statement)
        start, end = self.source.start_with_decorators(target), self.source.range(target)[1]
        prefix = self.source.prefix(target)
        new = lay_out(edit.code, prefix, self.style, self._columns_added(target.lineno))
        new = new.removeprefix(prefix)
        if self.source.starts_line(target):
            above = _lost_comments(prefix + self.source.text[start:end], edit.code)
            new = "".join(f"{line}{self.style.newline}{prefix}" for line in above) + new
        return Rewrite(start, end, lambda _: new, edit, Rank.STATEMENT, replaces=True)

    # Decorators and blocks

    def _decoration(self, edit: Decorate) -> Rewrite:
        target = self.source.find(_DEFINITIONS, edit.function)
        if target is None:
            raise EditError(edit, "no function there")
        start, _ = self.source.range(target)
        line = f"@{edit.code}{self.style.newline}{self.source.prefix(target)}"
        return Rewrite(start, start, lambda text: text + line, edit, Rank.STATEMENT)

    def _added_context(self, edit: AddContext) -> Rewrite:
        target = self.source.find((ast.With, ast.AsyncWith), edit.statement)
        if not isinstance(target, ast.With | ast.AsyncWith):
            raise EditError(edit, "no with statement there")
        item = target.items[-1]
        _, end = self.source.range(item.optional_vars or item.context_expr)
        return Rewrite(end, end, lambda text: f"{text}, {edit.code}", edit, Rank.STATEMENT)

    def _wrapped_statements(self, edit: Wrap) -> list[ast.stmt]:
        first = statement(self.source, edit, edit.first)
        last = statement(self.source, edit, edit.last)
        block = self.source.blocks[first]
        if last not in block or block.index(last) < block.index(first):
            raise EditError(
                edit, "its first and last statement are not in one block, in that order"
            )
        return block[block.index(first) : block.index(last) + 1]

    def _wrapped_lines(self, edit: Wrap) -> tuple[int, int]:
        statements = self._wrapped_statements(edit)
        last = self.source.last_line_of_block(statements[-1])
        if self._is_headed_as_a_whole(edit, statements):
            return self.source.first_line(statements[0]), last
        return self.source.leading_line(statements[0]), last

    def _is_headed_as_a_whole(self, edit: Wrap, statements: list[ast.stmt]) -> bool:
        """Whether a comment above ``statements`` is about all of them: none of the others has one of its own."""
        return edit.header.strip().split("\n")[-1].startswith("with ") and all(
            self.source.leading_line(other) == self.source.first_line(other)
            for other in statements[1:]
        )

    def _wrapping(self, edit: Wrap) -> Rewrite:
        first, last = self._wrapped_lines(edit)
        prefix = self.source.prefix(self._wrapped_statements(edit)[0])
        ahead, _, head = edit.header.strip().rpartition("\n")
        extra = self._columns_added(first) - width(self.style.indent)
        rows = [lay_out(ahead, prefix, self.style, extra)] if ahead else []
        header = "".join(f"{row}{self.style.newline}" for row in [*rows, f"{prefix}{head}"])

        unit = self._unit(self._wrapped_statements(edit)[0])

        def function(text: str) -> str:
            return header + indent(text, prefix, unit)

        return Rewrite(*self._lines(first, last), function, edit, Rank.WRAP)

    def _unit(self, target: ast.stmt) -> str:
        """One level of indentation where ``target`` stands: what its own block is indented by, in files with several."""
        outer = self._owners.get(id(self.source.blocks[target]))
        if outer is None:
            return self.style.indent
        inner, around = self.source.prefix(target), self.source.prefix(outer)
        own = inner.removeprefix(around) if inner.startswith(around) else ""
        return own or self.style.indent

    @cached_property
    def _owners(self) -> dict[int, ast.stmt]:
        """The statement that each block is a part of."""
        return {
            id(block): statement
            for statement in self.source.blocks
            for block in blocks_of(statement)
        }


def _lost_comments(old: str, new: str) -> list[str]:
    """The comments inside of the statement ``old`` that ``new`` does not have."""
    if "#" not in old:
        return []
    kept = {token.string for token in tokens(new) if token.type == tokenize.COMMENT}
    found = [token.string for token in tokens(old) if token.type == tokenize.COMMENT]
    return [comment for comment in found if comment not in kept]
