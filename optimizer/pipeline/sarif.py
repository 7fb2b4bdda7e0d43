"""A rewrite as SARIF, which code-scanning services and editors show beside the code.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...transforms.base import Transform
from ..terminal import path_from_here
from .report import FileReport

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def to_sarif(reports: Sequence[FileReport], transforms: Sequence[Transform]) -> str:
    """The reports as one SARIF log with one run: a rule for each of ``transforms``.

    A warning for each change and a note for each piece of advice; what could not be rewritten is a notification of the
    run. Places that were left alone are not told.
    """
    indices = {transform.name: index for index, transform in enumerate(transforms)}
    driver = {
        "name": "torchopt",
        "semanticVersion": version("torchopt-cli"),
        "rules": [_rule(transform) for transform in transforms],
    }
    faults = [_fault(report) for report in reports if report.error is not None]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {"executionSuccessful": not faults, "toolExecutionNotifications": faults},
        ],
        "results": [
            {"ruleIndex": indices[result["ruleId"]], **result}
            for report in reports
            for result in _results(report)
        ],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(transform: Transform) -> dict[str, Any]:
    documentation = transform.documentation()
    return {
        "id": transform.name,
        "shortDescription": {"text": documentation.partition("\n\n")[0].replace("\n", " ")},
        "help": {"text": documentation},
        "properties": {"tags": [transform.kind]},
    }


def _results(report: FileReport) -> Iterator[dict[str, Any]]:
    for change in report.changes:
        yield {
            "ruleId": change.transform,
            "level": "warning",
            "message": {"text": f"{change.message}; {change.reason}"},
            "locations": [_location(report.path, change.line, change.end_line)],
            "properties": {"tier": change.tier.label},
        }
    for given in report.advice:
        yield {
            "ruleId": given.transform,
            "level": "note",
            "message": {"text": given.message},
            "locations": [_location(report.path, given.line, given.line)],
        }


def _fault(report: FileReport) -> dict[str, Any]:
    place = {"physicalLocation": {"artifactLocation": {"uri": _uri(report.path)}}}
    return {"level": "error", "message": {"text": report.error}, "locations": [place]}


def _location(path: Path, line: int, end_line: int) -> dict[str, Any]:
    region = {"startLine": line, "endLine": end_line}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(path)}, "region": region}}


def _uri(path: Path) -> str:
    """Relative to the working directory where the file lies below it, as the services expect."""
    shown = Path(path_from_here(path))
    return shown.as_uri() if shown.is_absolute() else quote(str(shown).replace(os.sep, "/"))
