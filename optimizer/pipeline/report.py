"""A rewrite told to a reader (text) and to a program (JSON, see ``docs/json.md``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import TorchoptError
from ..options import Tier
from ..terminal import Paint, counted, display_path, path_from_here
from .diff_paths import DiffPaths
from .result import AppliedChange, GivenAdvice, RewrittenFile, SkippedChange

if TYPE_CHECKING:
    from ..verifying.verified_rewrite import VerifiedRewrite

JSON_VERSION = 1
_TIER_COLOURS = {Tier.EXACT: "green", Tier.NUMERIC: "yellow", Tier.SEMANTIC: "red"}


@dataclass(frozen=True)
class FileReport:
    """What is said about one file; ``error`` is why it, or a part of it, was not rewritten.

    ``created`` says that there was no such file, ``launch`` what starts the script from now on if not ``python``.
    """

    path: Path
    changed: bool = False
    changes: tuple[AppliedChange, ...] = ()
    skips: tuple[SkippedChange, ...] = ()
    advice: tuple[GivenAdvice, ...] = ()
    error: str | None = None
    created: bool = False
    launch: str | None = None

    @classmethod
    def of(cls, file: RewrittenFile) -> FileReport:
        """The report on a rewritten file."""
        errors = [f"{error.transform}: {error.message}" for error in file.errors]
        return cls(
            file.path,
            file.changed,
            tuple(sorted(file.changes, key=lambda change: (change.line, change.transform))),
            tuple(sorted(file.skips, key=lambda skip: (skip.line, skip.transform))),
            tuple(sorted(file.advice, key=lambda given: (given.line, given.transform))),
            "; ".join(errors) or None,
            file.created,
            next((change.launch for change in file.changes if change.launch is not None), None),
        )

    @classmethod
    def unreadable(cls, error: TorchoptError) -> FileReport:
        """The report on a file that could not be rewritten at all."""
        return cls(error.path or Path(), error=str(replace(error, path=None)))


def to_json(
    reports: Sequence[FileReport], verified: Sequence[VerifiedRewrite] | None = None
) -> str:
    """The reports as one JSON document, a newline at its end; with how they were ``verified``, if they were."""
    files = [
        {
            "path": path_from_here(report.path),
            "created": report.created,
            "launch": report.launch,
            "changes": [
                {
                    "transform": change.transform,
                    "tier": change.tier.label,
                    "line": change.line,
                    "end_line": change.end_line,
                    "message": change.message,
                    "reason": change.reason,
                }
                for change in report.changes
            ],
            "skips": [
                {"transform": skip.transform, "line": skip.line, "message": skip.message}
                for skip in report.skips
            ],
            "advice": [
                {"transform": given.transform, "line": given.line, "message": given.message}
                for given in report.advice
            ],
            "error": report.error,
        }
        for report in reports
    ]
    document: dict[str, object] = {"version": JSON_VERSION, "files": files}
    if verified is not None:
        from ..verifying import verified_rewrite_report

        document["verification"] = [verified_rewrite_report.to_json(part) for part in verified]
    return json.dumps(document, indent=2) + "\n"


def to_diff(file: RewrittenFile, paths: DiffPaths, paint: Paint) -> bytes:
    """The change of one file as a unified diff whose hunks name the transforms behind them.

    In the encoding of the file, so that ``git apply`` and ``patch`` take it.
    """
    from ..rewriting.attribution import unified_diff

    label = paths.label(file.path)
    text = unified_diff(label, file.provenance, file.original.bom)
    if file.created or not paths.is_here:
        text = as_git_diff(label, text, file.original.executable if file.created else None)
    lines = (paint(line, _diff_colour(line)) for line in text.split("\n"))
    return "\n".join(lines).encode(file.original.encoding)


def as_git_diff(label: str, diff: str, executable: bool | None) -> str:
    """``diff`` with the header that makes its path ``label`` one from the root of a repository; ``patch`` skips it.

    ``executable`` is None for a file that is there, else what ``git apply`` is to make the new file.
    """
    from ..rewriting.attribution import quoted_path

    head = f"diff --git {quoted_path('a/' + label)} {quoted_path('b/' + label)}\n"
    if executable is None:
        return head + diff
    _, _, rest = diff.partition("\n")
    mode = "100755" if executable else "100644"
    return f"{head}new file mode {mode}\n--- /dev/null\n{rest}"


def _diff_colour(line: str) -> str:
    if line.startswith(("--- ", "+++ ")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")


def to_text(
    reports: Sequence[FileReport],
    written: bool,
    paint: Paint,
    *,
    trains: bool = True,
    output: Path | None = None,
) -> str:
    """The reports as lines for a reader: what was done, what was left and why, advice, a summary.

    ``written`` tells whether the files were written or only would be, to ``output`` in place of the script where that is
    given; ``trains`` whether a training step is seen in any of the scripts.
    """
    # The same change twice on one line, such as two copies, is told and counted once.
    told = dict.fromkeys(
        _change_line(change, paint) for report in reports for change in report.changes
    )
    lines = list(told)
    for report in reports:
        if report.launch is not None:
            place = paint(display_path(report.path), "bold")
            lines.append(f"{place} is started with `{report.launch}` from now on")
    for title, remarks in (
        ("Left alone:", [skip for report in reports for skip in report.skips]),
        ("Advice:", [given for report in reports for given in report.advice]),
    ):
        if remarks:
            lines += ["", paint(title, "bold")][not lines :]
            lines += [_remark_line(remark, paint) for remark in remarks]
    return "\n".join(
        [
            *lines,
            *([""] if lines else []),
            _summary(reports, len(told), written, trains, output),
            "",
        ]
    )


def _change_line(change: AppliedChange, paint: Paint) -> str:
    place = paint(f"{display_path(change.path)}:{change.line}", "bold")
    tier = paint(f"[{change.tier.label}]", _TIER_COLOURS[change.tier])
    return f"{place} {change.transform} {tier} {change.message}; {change.reason}"


def _remark_line(remark: SkippedChange | GivenAdvice, paint: Paint) -> str:
    place = paint(f"{display_path(remark.path)}:{remark.line}", "bold")
    return f"{place} {remark.transform}: {remark.message}"


def _summary(
    reports: Sequence[FileReport], told: int, written: bool, trains: bool, output: Path | None
) -> str:
    changed = [report for report in reports if report.changed]
    skipped = sum(len(report.skips) for report in reports)
    left = f"; {counted(skipped, 'place')} left alone" if skipped else ""
    if not changed:
        why = "" if trains else ": no training step is seen"
        copy = ""
        if output is not None and written and reports:
            copy = f" {display_path(output)} is a copy."
        return f"Nothing to rewrite{why}{left}.{copy}"
    verb = "rewritten" if written else "would be rewritten"
    if output is not None:
        verb += f" as {display_path(output)}"
    made = [report for report in changed if report.created]
    new = f", {counted(len(made), 'file')} {'made' if written else 'would be made'}" if made else ""
    return (
        f"{counted(len(changed) - len(made), 'file')} {verb}{new}: {counted(told, 'change')}{left}."
    )
