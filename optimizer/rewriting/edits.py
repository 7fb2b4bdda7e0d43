"""The vocabulary of edits a transform may ask for.

An edit names its target by the :class:`Span` of a node of the current source and says what should stand there.
It is plain data: :mod:`.apply` carries it out, keeping every byte it does not name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, order=True)
class Span:
    """A half-open range of source text: lines are 1-based, columns 0-based, counted in characters."""

    line: int
    column: int
    end_line: int
    end_column: int

    def contains(self, other: Span) -> bool:
        """Whether ``other`` lies inside this span (a span contains itself)."""
        return (self.line, self.column) <= (other.line, other.column) and (
            other.end_line,
            other.end_column,
        ) <= (self.end_line, self.end_column)


@dataclass(frozen=True)
class SetArgument:
    """Give the call at ``call`` the keyword argument ``keyword=value``.

    Replaces the value when the keyword is there; otherwise adds it behind the last keyword (before ``**kwargs``),
    in the layout of the call (one argument per line stays one argument per line, trailing comma kept).
    ``position`` names the index under which the parameter may have been passed positionally: if an argument
    stands there, its value is replaced instead.
    """

    call: Span
    keyword: str
    value: str
    position: int | None = None


@dataclass(frozen=True)
class InsertArgument:
    """Insert ``value`` before the argument at index ``position`` of the call at ``call``, in the layout of the call."""

    call: Span
    position: int
    value: str


@dataclass(frozen=True)
class RemoveArgument:
    """Remove the keyword argument ``keyword`` from the call at ``call``."""

    call: Span
    keyword: str


@dataclass(frozen=True)
class ReplaceArguments:
    """Put ``new`` where the first of the keyword arguments ``old`` of the call at ``call`` stands, and remove the others.

    ``new`` are keywords with their values. The comments behind the old ones go together behind the last new one.
    """

    call: Span
    old: tuple[str, ...]
    new: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SetDictEntry:
    """Give the dict display at ``target`` the string key ``key`` with ``value`` (added last, or replaced)."""

    target: Span
    key: str
    value: str


@dataclass(frozen=True)
class ReplaceExpression:
    """Put the expression ``code`` where the expression at ``target`` stands.

    Parentheses are added where precedence needs them. No other edit may lie inside ``target``.
    """

    target: Span
    code: str


@dataclass(frozen=True)
class InsertBefore:
    """Insert the statements of ``code`` (dedented, may be several lines) above the statement at ``statement``.

    They land below the comments that belong to the previous statement and above none of the comments that
    lead ``statement``: a comment block directly above ``statement`` stays directly above it. ``apart`` sets them
    off with blank lines. Where a :class:`Wrap` begins with ``statement``, they land inside of it, unless ``outside``.
    """

    statement: Span
    code: str
    apart: bool = False
    outside: bool = False


@dataclass(frozen=True)
class InsertAfter:
    """Insert the statements of ``code`` (dedented) below the statement at ``statement``, in the same block."""

    statement: Span
    code: str


@dataclass(frozen=True)
class ReplaceStatement:
    """Put the statements of ``code`` where the statement at ``statement`` stands; its comments stay, those inside of it above."""

    statement: Span
    code: str


@dataclass(frozen=True)
class RemoveStatement:
    """Remove a statement; its own-line comments stay, its trailing comment goes with it.

    A block left empty gets ``pass``. With ``closes_up``, as for one of several that a call further down replaces, the comments
    above it go on to what follows, without blank lines between.
    """

    statement: Span
    closes_up: bool = False


@dataclass(frozen=True)
class Wrap:
    """Indent the sibling statements from ``first`` to ``last`` (both included) under ``header``.

    ``header`` is a compound statement's first line without its body: ``with torch.no_grad():`` or
    ``if __name__ == "__main__":``, below simple statements it depends on if need be. Text inside multi-line strings is not indented. Other edits may lie inside,
    and of two wraps of the same statements the later one goes around. A comment above them stays above a ``with`` where
    none of the statements behind the first has a comment of its own; otherwise it goes inside.
    """

    first: Span
    last: Span
    header: str


@dataclass(frozen=True)
class AddContext:
    """Give the ``with`` statement at ``statement`` the context manager ``code``, behind those it has."""

    statement: Span
    code: str


@dataclass(frozen=True)
class Decorate:
    """Put the decorator ``code`` (without ``@``) on the function at ``function``, nearest to its ``def``."""

    function: Span
    code: str


@dataclass(frozen=True)
class AddParameter:
    """Give the function at ``function`` the parameter ``name``, behind its parameter ``after``.

    Other edits may lie inside the function.
    """

    function: Span
    name: str
    after: str


@dataclass(frozen=True)
class AddImport:
    """Import ``module`` (``name`` None) or ``name`` from ``module``, unless that very import is already there.

    Placed behind the last of the module-level imports at the file's top, beside imports of the same package
    when there are some; ``from m import a`` gains ``, b`` when the file already imports from ``m`` that way.
    """

    module: str
    name: str | None = None
    alias: str | None = None


@dataclass(frozen=True)
class RemoveImportedName:
    """Drop ``name`` from ``from module import name``, and the whole statement when nothing is left."""

    module: str
    name: str


ExpressionEdit: TypeAlias = (
    SetArgument
    | InsertArgument
    | RemoveArgument
    | ReplaceArguments
    | SetDictEntry
    | ReplaceExpression
)
Edit: TypeAlias = (
    ExpressionEdit
    | InsertBefore
    | InsertAfter
    | ReplaceStatement
    | RemoveStatement
    | Wrap
    | AddContext
    | Decorate
    | AddParameter
    | AddImport
    | RemoveImportedName
)


@dataclass(frozen=True)
class NewFile:
    """A file that is made beside those that are edited: a launcher. There must be no other file of that name."""

    path: Path
    text: str
    executable: bool = False


@dataclass(frozen=True)
class FileEdit:
    """An edit and the file it is for."""

    path: Path
    edit: Edit
