"""A rewrite as GitHub's workflow commands, which annotate the lines of a pull request.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..terminal import path_from_here
from .report import FileReport
from .result import AppliedChange


def to_workflow_commands(reports: Sequence[FileReport]) -> str:
    """A warning for each change, a notice for each piece of advice, an error for what could not be rewritten."""
    told = (line for report in reports for line in dict.fromkeys(_lines(report)))
    return "".join(f"{line}\n" for line in told)


def _lines(report: FileReport) -> Iterator[str]:
    path = path_from_here(report.path)
    if report.error is not None:
        yield _command("error", {"file": path, "title": "torchopt"}, report.error)
    for change in report.changes:
        yield _change(path, change)
    for given in report.advice:
        place = {"file": path, "line": given.line, "title": given.transform}
        yield _command("notice", place, given.message)


def _change(path: str, change: AppliedChange) -> str:
    title = f"{change.transform} ({change.tier.label})"
    place = {"file": path, "line": change.line, "endLine": change.end_line, "title": title}
    return _command("warning", place, f"{change.message}; {change.reason}")


def _command(name: str, properties: dict[str, str | int], message: str) -> str:
    told = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::{name} {told}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
