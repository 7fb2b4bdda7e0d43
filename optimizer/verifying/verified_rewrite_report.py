"""Tell what a verified rewrite came to: :func:`render_text` for people, :func:`to_json` for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypedDict

from ..comparison.findings import Finding
from ..comparison.verdict import Outcome
from ..measuring import ablation_report
from ..measuring.ablation_report import AblationJson
from ..pipeline.result import AppliedChange
from ..terminal import counted, display_path, error_line, path_from_here
from . import report as verification_report
from .report_json import failure_json, finding_json, reason
from .report_types import FailureJson, FindingJson, ReportJson
from .verified_rewrite import Ending, RolledBack, VerifiedRewrite

if TYPE_CHECKING:
    from rich.console import Console


class ChangeJson(TypedDict):
    """A change that was rolled back; ``source`` are the original's lines ``line`` to ``end_line``."""

    path: str
    line: int
    end_line: int
    message: str
    source: list[str]


class RolledBackJson(TypedDict):
    """See :class:`.verified_rewrite.RolledBack`. ``finding`` is the first difference, ``failure`` how a script failed."""

    transform: str
    together_with: list[str]
    dependent: list[str]
    outcome: str
    reason: str
    finding: FindingJson | None
    failure: FailureJson | None
    changes: list[ChangeJson]


class VerifiedRewriteJson(TypedDict):
    """See :class:`.verified_rewrite.VerifiedRewrite`."""

    scripts: list[str]
    ending: str
    gave_up: bool
    rolled_back: list[RolledBackJson]
    reports: list[ReportJson]
    verifications: int
    runs: int
    attribution: list[AblationJson]
    error: str | None


def to_json(result: VerifiedRewrite) -> VerifiedRewriteJson:
    """The result as plain values that ``json.dumps(..., allow_nan=False)`` takes."""
    return {
        "scripts": [path_from_here(script) for script in result.scripts],
        "ending": result.ending.value,
        "gave_up": result.gave_up,
        "rolled_back": [_rolled_back_json(item) for item in result.rolled_back],
        "reports": [verification_report.to_json(report) for report in result.reports],
        "verifications": result.verifications,
        "runs": result.runs,
        "attribution": [ablation_report.to_json(ablation) for ablation in result.ablations],
        "error": error_line(result.error) if result.error else None,
    }


def _rolled_back_json(item: RolledBack) -> RolledBackJson:
    finding = _first_difference(item)
    return {
        "transform": item.transform,
        "together_with": list(item.together_with),
        "dependent": list(item.dependent),
        "outcome": item.outcome.value,
        "reason": reason(item.report),
        "finding": finding_json(finding) if finding else None,
        "failure": failure_json(item.report),
        "changes": [_change_json(change, source) for change, source in item.changes],
    }


def _change_json(change: AppliedChange, source: tuple[str, ...]) -> ChangeJson:
    return {
        "path": path_from_here(change.path),
        "line": change.line,
        "end_line": change.end_line,
        "message": change.message,
        "source": list(source),
    }


def _first_difference(item: RolledBack) -> Finding | None:
    return item.report.verdict.failures[0] if _failed(item) and item.report.verdict else None


def _failed(item: RolledBack) -> bool:
    return bool(item.report.verdict and item.report.verdict.failures)


def render_text(result: VerifiedRewrite, console: Console) -> None:
    """Print what was rolled back and why, the last report of each script, and what is left."""
    for item in result.rolled_back:
        for index, line in enumerate(_rolled_back_lines(item)):
            _print(console, line, "" if index else "bold red")
        console.print()
    for report in result.reports if result.ending is not Ending.NOTHING_LEFT else ():
        verification_report.render_text(report, console)
    for ablation in result.ablations:
        ablation_report.render_text(ablation, console)
    if result.rolled_back or result.ending is not Ending.VERIFIED:
        _print(console, _summary(result), "bold")


def _print(console: Console, text: str, style: str) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _rolled_back_lines(item: RolledBack) -> Iterator[str]:
    yield f"Rolled back: {item.transform} ({item.outcome.value}): {reason(item.report)}"
    for change, source in item.changes:
        yield f"  {display_path(change.path)}:{change.line} {item.transform}: {change.message}"
        for number, line in enumerate(source, change.line):
            yield f"    {number:>5} | {line}"
    if item.together_with:
        others = ", ".join(item.together_with)
        yield f"  Only together with {others}, kept because applied before it."
    if item.dependent:
        yield f"  Without it there is nothing to do for {', '.join(item.dependent)}."
    failure = item.report.rewritten_failure
    if failure is not None:
        yield from (f"  {line}" for line in failure.details.splitlines())


def _summary(result: VerifiedRewrite) -> str:
    scripts = ", ".join(display_path(script) for script in result.scripts)
    effort = f"{counted(result.runs, 'run')}, {counted(result.verifications, 'verification')}"
    several = len(result.scripts) > 1
    left = "left as they were" if several else "left as it was"
    if result.error is not None:
        return f"{scripts}: {left}: {error_line(result.error)}"
    judged_last = display_path(result.reports[-1].original.entry) if result.reports else ""
    if result.ending is Ending.ORIGINAL_FAILED:
        failed = judged_last if several else "it"
        return f"{scripts}: {left}, because {failed} fails by itself ({effort})."
    if result.ending is Ending.INCONCLUSIVE:
        original = f"{judged_last} as it is" if several else "the original"
        return f"{scripts}: {left}; not even {original} is shown equivalent to itself ({effort})."
    if result.ending is Ending.NOTHING_LEFT:
        what = "them" if several else "it"
        return f"{scripts}: {left}; no rewrite of {what} was shown to be equivalent ({effort})."
    gone = ", ".join(item.transform for item in result.rolled_back)
    rest = (
        "the search reached its limit, so only a part of the rewrite is left"
        if result.gave_up
        else f"without {gone}"
    )
    wrong = any(item.outcome is Outcome.NOT_EQUIVALENT for item in result.rolled_back)
    fault = " What was wrong is a fault of torchopt: please report it." if wrong else ""
    return f"{scripts}: verified, {rest} ({effort}).{fault}"
