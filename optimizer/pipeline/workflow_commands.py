"""A rewrite as GitHub's workflow commands, which annotate the lines of a pull request.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..terminal import path_from_here
from .report import FileReport
from .result import AppliedChange


def to_workflow_commands(reports: Sequence[FileReport]) -> str:
    """A warning for each change, a notice for each piece of advice, an error for what could not be rewritten."""
    told = (line for report in reports for line in dict.fromkeys(_lines(report)))
    return "".join(f"{line}\n" for line in told)


def annotated_path(path: Path) -> str:
    """``path`` as GitHub finds it: from the root of the checkout, also where the command runs further down."""
    absolute, workspace = os.path.abspath(path), os.environ.get("GITHUB_WORKSPACE")
    if workspace and Path(absolute).is_relative_to(workspace):
        return os.path.relpath(absolute, workspace)
    return path_from_here(path)


def _lines(report: FileReport) -> Iterator[str]:
    path = annotated_path(report.path)
    if report.error is not None:
        yield workflow_command("error", {"file": path, "title": "torchopt"}, report.error)
    for change in report.changes:
        yield _change(path, change)
    for given in report.advice:
        place = {"file": path, "line": given.line, "title": given.transform}
        yield workflow_command("notice", place, given.message)


def _change(path: str, change: AppliedChange) -> str:
    title = f"{change.transform} ({change.tier.label})"
    place = {"file": path, "line": change.line, "endLine": change.end_line, "title": title}
    return workflow_command("warning", place, f"{change.message}; {change.reason}")


def workflow_command(name: str, properties: dict[str, str | int], message: str) -> str:
    """The line that has GitHub show ``message`` at the place that ``properties`` say."""
    told = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::{name} {told}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
