"""Stretches of text and what becomes of them, nested in each other and carried out from the inside out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from .edits import (
    AddContext,
    AddParameter,
    Decorate,
    Edit,
    InsertAfter,
    InsertArgument,
    InsertBefore,
    RemoveArgument,
    RemoveStatement,
    ReplaceArguments,
    ReplaceStatement,
    SetArgument,
    Span,
    Wrap,
)


class EditError(ValueError):
    """An edit that cannot be carried out: its target is not there, or it conflicts with another one."""

    def __init__(self, edit: Edit, reason: str) -> None:
        place = edit_span(edit)
        where = f" at line {place.line}" if place else ""
        super().__init__(f"{type(edit).__name__}{where}: {reason} ({edit})")
        self.edit = edit


def edit_span(edit: Edit) -> Span | None:
    """Where ``edit`` applies; None for imports, which find their own place."""
    match edit:
        case SetArgument() | InsertArgument() | RemoveArgument() | ReplaceArguments():
            return edit.call
        case InsertBefore() | InsertAfter() | ReplaceStatement() | RemoveStatement():
            return edit.statement
        case AddContext():
            return edit.statement
        case Wrap():
            return edit.first
        case Decorate() | AddParameter():
            return edit.function
        case _:
            return getattr(edit, "target", None)


class Rank(IntEnum):
    """Which of two rewrites of the same stretch lies inside: the lower one."""

    EXPRESSION = 0
    LAYOUT = 1
    STATEMENT = 2
    SURROUNDING = 3
    WRAP = 4
    ABOVE_WRAP = 5


@dataclass(frozen=True)
class Rewrite:
    """What becomes of ``text[start:end]``: ``function`` of what the rewrites inside have made of it.

    ``replaces`` says that ``function`` throws its argument away, so that no other edit may lie inside.
    """

    start: int
    end: int
    function: Callable[[str], str]
    edit: Edit | None
    rank: Rank
    replaces: bool = False


@dataclass
class _Node:
    rewrite: Rewrite
    children: list[_Node] = field(default_factory=list["_Node"])


def carry_out(text: str, rewrites: Iterable[Rewrite]) -> str:
    """``text`` after all ``rewrites``; of equal stretch and rank, the earlier one lies inside.

    Raises EditError where two of them overlap without nesting, or one lies inside a replacement.
    """
    numbered = sorted(
        enumerate(rewrites), key=lambda pair: (pair[1].start, -pair[1].end, -pair[1].rank, -pair[0])
    )
    top: list[_Node] = []
    around: list[_Node] = []
    for _, rewrite in numbered:
        while (
            around
            and around[-1].rewrite.end <= rewrite.start
            and not _same(around[-1].rewrite, rewrite)
        ):
            around.pop()
        node = _Node(rewrite)
        for outer in around:
            _refuse_conflict(outer.rewrite, rewrite)
        (around[-1].children if around else top).append(node)
        around.append(node)
    return _render(text, 0, len(text), top)


def _same(one: Rewrite, other: Rewrite) -> bool:
    return (one.start, one.end) == (other.start, other.end)


def _refuse_conflict(outer: Rewrite, inner: Rewrite) -> None:
    if inner.edit is None or outer.edit is None:  # a layout nests wherever the edits do
        return
    if inner.end > outer.end:
        raise EditError(inner.edit, f"overlaps {outer.edit}")
    rivals = _same(outer, inner) and outer.rank == inner.rank
    if outer.replaces or (rivals and inner.replaces):
        raise EditError(inner.edit, f"lies inside what is replaced by {outer.edit}")


def _render(text: str, start: int, end: int, nodes: list[_Node]) -> str:
    parts: list[str] = []
    for node in nodes:
        rewrite = node.rewrite
        parts.append(text[start : rewrite.start])
        parts.append(rewrite.function(_render(text, rewrite.start, rewrite.end, node.children)))
        start = rewrite.end
    return "".join([*parts, text[start:end]])
