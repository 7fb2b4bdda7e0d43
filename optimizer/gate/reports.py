"""Tell what a gate came to: text, a markdown summary, JUnit XML, and annotations on a pull request."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from ..errors import ExitCode
from ..pipeline.workflow_commands import annotated_path, workflow_command
from ..profiling.report import phase_label
from .judge import EXIT_CODES, Gated, Judgement, phase_words

_ORDER = (
    ExitCode.NOT_EQUIVALENT,
    ExitCode.NOT_FAST_ENOUGH,
    ExitCode.SCRIPT_FAILED,
    ExitCode.USAGE,
    ExitCode.FINDINGS,
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKED_UP = re.compile(r"(`[^`]*`)|<|__")
_MARKS = {Gated.PASSED: "✅"}


def exit_code(judgements: Sequence[Judgement]) -> ExitCode:
    """The gravest of all: not equivalent, then not fast enough, failed by itself, not gated, inconclusive."""
    found = {EXIT_CODES[one.gated] for one in judgements}
    return next((code for code in _ORDER if code in found), ExitCode.OK)


def to_text(judgements: Sequence[Judgement]) -> str:
    """A line for each script, and below it what got slower, or the traceback."""
    lines: list[str] = []
    for one in judgements:
        lines.append(f"{one.job.name}: {one.gated.value}: {one.reason}{_and_speed(one)}")
        lines += [f"    {phase_words(change)}" for change in one.phases]
        lines += [f"    {line}" for line in (one.details or "").strip().splitlines()]
    failed = sum(one.gated is not Gated.PASSED for one in judgements)
    verdict = f"{failed} of {len(judgements)} did not pass" if failed else "the gate passes"
    return "\n".join([*lines, verdict]) + "\n"


def _and_speed(one: Judgement) -> str:
    if one.gated is Gated.PASSED and one.speedup:
        return f"; {one.speedup}, at least {one.job.minimum:.2f}x wanted"
    return f"; {one.speed_note}" if one.speed_note and one.speed_note != one.reason else ""


def to_markdown(judgements: Sequence[Judgement]) -> str:
    """A table for a job summary or a comment."""
    rows = [
        "### torchopt gate",
        "",
        "| | script | equivalence | speedup | wanted |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in judgements:
        speed = str(one.speedup) if one.speedup else one.speed_note or "not measured"
        cells = [_MARKS.get(one.gated, "❌"), one.job.name, _equivalence(one), speed]
        cells.append(f"{one.job.minimum:.2f}x")
        rows.append("| " + " | ".join(_in_line(cell).replace("|", "\\|") for cell in cells) + " |")
    for one in judgements:
        if one.gated is not Gated.PASSED:
            rows += ["", f"**{_in_line(one.job.name)}**: {one.gated.value}: {_in_line(one.reason)}"]
        if one.phases:
            rows += ["", "| phase | before | after |", "| --- | ---: | ---: |"]
            rows += [
                f"| {phase_label(c.phase)} | {c.before * 1e3:.3g} ms | {c.after * 1e3:.3g} ms |"
                for c in one.phases
            ]
        if one.details:
            details = _ESCAPES.sub("", one.details.strip())
            longest = max(map(len, re.findall("`+", details)), default=0)
            fence = "`" * max(3, longest + 1)
            rows += ["", fence, details, fence]
    return "\n".join(rows) + "\n"


def _in_line(text: str) -> str:
    """``text`` whose ``<lambda>`` and ``__init__`` markdown leaves as they are."""
    return _MARKED_UP.sub(
        lambda found: found[1] or "".join(f"\\{c}" for c in found[0]), _ESCAPES.sub("", text)
    )


def _equivalence(one: Judgement) -> str:
    verdict = one.report.verdict if one.report else None
    if verdict is None:
        return one.gated.value
    emulated = ", CUDA emulated" if one.job.emulated else ""
    return f"{verdict.outcome.value} ({verdict.tier.label}{emulated})"


def to_junit(judgements: Sequence[Judgement]) -> str:
    """JUnit XML as CI services read it: a test of equivalence and one of speed for each script."""
    suite = ElementTree.Element("testsuite", name="torchopt gate")
    for one in judgements:
        equivalence = ElementTree.SubElement(
            suite, "testcase", classname=_xml_text(one.job.name), name="equivalence"
        )
        speed = ElementTree.SubElement(
            suite, "testcase", classname=_xml_text(one.job.name), name="speed"
        )
        _fill(one, equivalence, speed)
    cases = list(suite)
    for kind in ("failure", "error", "skipped"):
        count = sum(case.find(kind) is not None for case in cases)
        suite.set({"failure": "failures", "error": "errors"}.get(kind, kind), str(count))
    suite.set("tests", str(len(cases)))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, "unicode") + "\n"
    )


def _xml_text(text: str) -> str:
    """``text`` without terminal colours and what XML 1.0 cannot hold, which a script may well print."""
    return _NOT_IN_XML.sub("\ufffd", _ESCAPES.sub("", text))


def _fill(one: Judgement, equivalence: ElementTree.Element, speed: ElementTree.Element) -> None:
    def put(case: ElementTree.Element, tag: str, message: str) -> None:
        entry = ElementTree.SubElement(case, tag, message=_xml_text(message))
        lines = [message, *map(phase_words, one.phases)]
        told = one.details if one.details and tag != "skipped" else "\n".join(lines)
        entry.text = _xml_text(told)

    if one.gated is Gated.TOO_SLOW:
        put(speed, "failure", one.reason)
        return
    if one.gated is Gated.PASSED:
        if one.measurement is None:
            put(speed, "skipped", one.speed_note or "not measured")
        return
    timed = one.gated is Gated.ERROR and one.report is not None
    wrong = one.gated in (Gated.NOT_EQUIVALENT, Gated.INCONCLUSIVE)
    put(speed if timed else equivalence, "failure" if wrong else "error", one.reason)
    if not timed:
        put(speed, "skipped", "not measured")


def to_annotations(judgements: Sequence[Judgement]) -> str:
    """Workflow commands by which GitHub shows what did not pass at the file."""
    lines: list[str] = []
    for one in judgements:
        if one.gated is not Gated.PASSED:
            path = annotated_path(one.job.after.entry)
            place: dict[str, str | int] = {
                "file": path,
                "title": f"torchopt gate ({one.gated.value})",
            }
            lines.append(workflow_command("error", place, one.reason) + "\n")
    return "".join(lines)
