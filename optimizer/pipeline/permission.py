"""Which changes may be made: what the tier, comments, other scripts and the user allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ...transforms.base import Advice, Change, Skip
from ..options import Tier
from ..rewriting.edits import Span
from .result import GivenAdvice
from .shared_code import other_script
from .state import RewriteState
from .suppression import Suppression, edited_span, suppressions


def permitted_changes(
    rewrite: RewriteState, changes: Iterable[Change], tier: Tier
) -> tuple[list[Change], list[Skip], frozenset[tuple[Path, int, str]]]:
    """The changes that tier, comments, other scripts and the user allow, and skips for the others."""
    permitted: list[Change] = []
    refused: list[Skip] = []
    used: set[tuple[Path, int, str]] = set()
    for change in changes:
        comments = list(_comments_against(rewrite, change, _touched(change)))
        if change.tier > tier:
            label = change.tier.label
            message = f"{change.message}: only with --tier {label}"
        elif comments:
            reason = comments[0][1].reason
            message = f"suppressed: {reason}" if reason else "suppressed"
        elif (user := other_script(rewrite.script, change)) is not None:
            message = f"{change.message}: not done, {user}"
        elif not rewrite.wanted(change):
            message = f"{change.message}: declined"
        else:
            permitted.append(change)
            continue
        refused.append(Skip(change.transform, change.path, change.span, message))
        used.update(_used(rewrite, change, comments))
    return permitted, refused, frozenset(used)


def wanted_advice(
    rewrite: RewriteState, advice: Iterable[Advice]
) -> tuple[tuple[GivenAdvice, ...], frozenset[tuple[Path, int, str]]]:
    """The advice that none of the user's comments forbids, and the comments that forbid some."""
    wanted: list[GivenAdvice] = []
    used: set[tuple[Path, int, str]] = set()
    for item in advice:
        comments = list(_comments_against(rewrite, item, {item.path: [item.span]}))
        used.update(_used(rewrite, item, comments))
        wanted += [] if comments else [rewrite.given(item)]
    return tuple(wanted), frozenset(used)


def _used(
    rewrite: RewriteState, item: Change | Advice, comments: Iterable[tuple[Path, Suppression]]
) -> Iterator[tuple[Path, int, str]]:
    """How ``Outcome.suppressed`` names the ``comments`` that keep ``item`` off."""
    for path, comment in comments:
        file = rewrite.file(path)
        yield file.path, file.provenance.original_line(comment.line), item.transform


def _touched(change: Change) -> dict[Path, list[Span]]:
    spans: dict[Path, list[Span]] = {change.path: [change.span]}
    for file_edit in change.edits:
        span = edited_span(file_edit.edit)
        spans.setdefault(file_edit.path, []).extend([span] if span else [])
    return spans


def _comments_against(
    rewrite: RewriteState, item: Change | Advice, spans: Mapping[Path, list[Span]]
) -> Iterator[tuple[Path, Suppression]]:
    for path, touched in spans.items():
        for comment in suppressions(rewrite.sources.read(path).text):
            if comment.keeps_off(item.transform, touched):
                yield path, comment
