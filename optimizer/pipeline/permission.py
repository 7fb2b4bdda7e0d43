"""Which changes may be made: what the tier, comments, other scripts and the user allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...transforms.base import Advice, Change, Skip
from ..options import Tier
from ..rewriting.edits import Span
from .result import GivenAdvice, Proposal, SharedUse
from .shared_code import shared_uses
from .state import RewriteState
from .suppression import Suppression, edited_span, suppressions


@dataclass(frozen=True)
class Permission:
    """The changes that may be made, skips for the others, and the comments against them, as :attr:`.Outcome.suppressed`.

    ``proposals`` are those of the others that only stand back for scripts which use the same code.
    """

    changes: tuple[Change, ...]
    refused: tuple[Skip, ...]
    suppressed: frozenset[tuple[Path, int, str]]
    proposals: tuple[Proposal, ...]


def permission(rewrite: RewriteState, changes: Iterable[Change], tier: Tier) -> Permission:
    """Which of ``changes`` tier, comments, other scripts and the user allow."""
    permitted: list[Change] = []
    refused: list[Skip] = []
    used: set[tuple[Path, int, str]] = set()
    proposals: list[Proposal] = []
    for change in changes:
        comments = list(_comments_against(rewrite, change, _touched(change)))
        uses: tuple[SharedUse, ...] = ()
        if change.tier > tier:
            label = change.tier.label
            message = f"{change.message}: only with --tier {label}"
        elif comments:
            reason = comments[0][1].reason
            message = f"suppressed: {reason}" if reason else "suppressed"
        elif uses := _kept_for_others(rewrite, change):
            message = f"{change.message}: not done, {uses[0].words}"
        elif not rewrite.wanted(change):
            message = f"{change.message}: declined"
        else:
            permitted.append(change)
            continue
        skip = Skip(change.transform, change.path, change.span, message)
        refused.append(skip)
        used.update(_used(rewrite, change, comments))
        if uses and not (change.files or change.launch):
            proposals.append(_proposal(rewrite, change, uses, skip))
    return Permission(tuple(permitted), tuple(refused), frozenset(used), tuple(proposals))


def _kept_for_others(rewrite: RewriteState, change: Change) -> tuple[SharedUse, ...]:
    """The uses by other scripts that keep ``change`` off; none where they agreed to it."""
    if rewrite.agreed and rewrite.shared_edits(change) in rewrite.agreed:
        return ()
    return shared_uses(rewrite.script, change)


def _proposal(
    rewrite: RewriteState, change: Change, uses: tuple[SharedUse, ...], skip: Skip
) -> Proposal:
    spelt = tuple(replace(use, path=rewrite.sources.read(use.path).path) for use in uses)
    return Proposal(rewrite.shared_edits(change), spelt, rewrite.skipped(skip))


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
