from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.errors import ExitCode
from torchopt_cli.optimizer.execution.observations import Timing
from torchopt_cli.optimizer.execution.profile_record import Phase
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.gate.judge import Gated, Job, Judgement, PhaseChange
from torchopt_cli.optimizer.gate.reports import (
    exit_code,
    to_annotations,
    to_junit,
    to_markdown,
    to_text,
)
from torchopt_cli.optimizer.measuring.measurement import TimedRun, compare_speeds


def made(gated: Gated, reason: str = "why", **fields: object) -> Judgement:
    after = ScriptVersion(Path("/p/fast.py"))
    job = Job(
        "fast.py against train.py", ScriptVersion(Path("/p/train.py")), after, None, 1.2, None, 20
    )
    return Judgement(job, gated, reason, **fields)  # pyright: ignore[reportArgumentType]


def measured(seconds: float) -> object:
    runs = [TimedRun(Timing(9.0, 2.0, 0.5, (s,) * 20, (0.0,) * 20)) for s in (1.0, seconds)]
    return compare_speeds([runs[0]] * 4, [runs[1]] * 4)


PASSED = made(Gated.PASSED, "bit for bit the same", measurement=measured(0.5))
UNTIMED = made(Gated.PASSED, "bit for bit the same", speed_note="there is no GPU")
WRONG = made(Gated.NOT_EQUIVALENT, "loss at step 2", details="Traceback\nKeyError: 'x'\n")
SLOW = made(
    Gated.TOO_SLOW,
    "0.91x [0.91, 0.91] does not reach 1.20x",
    measurement=measured(1.1),
    phases=(PhaseChange(Phase.DATA, 0.001, 0.002),),
)
BROKEN = made(Gated.ERROR, "train.py: no optimizer")


@pytest.mark.parametrize(
    ("judgements", "code"),
    [
        ([], ExitCode.OK),
        ([PASSED, UNTIMED], ExitCode.OK),
        ([PASSED, SLOW], ExitCode.NOT_FAST_ENOUGH),
        ([SLOW, WRONG, BROKEN], ExitCode.NOT_EQUIVALENT),
        ([made(Gated.ORIGINAL_FAILED), BROKEN], ExitCode.SCRIPT_FAILED),
        ([made(Gated.INCONCLUSIVE), PASSED], ExitCode.FINDINGS),
        ([made(Gated.INCONCLUSIVE), BROKEN], ExitCode.USAGE),
    ],
)
def test_the_gravest_decides(judgements: list[Judgement], code: ExitCode) -> None:
    assert exit_code(judgements) is code


def test_text() -> None:
    assert to_text([PASSED, SLOW, WRONG]) == (
        "fast.py against train.py: passed: bit for bit the same; 2.00x [2.00, 2.00], at least 1.20x wanted\n"
        "fast.py against train.py: not fast enough: 0.91x [0.91, 0.91] does not reach 1.20x\n"
        "    data wait: 1 ms -> 2 ms per step\n"
        "fast.py against train.py: not equivalent: loss at step 2\n"
        "    Traceback\n"
        "    KeyError: 'x'\n"
        "2 of 3 did not pass\n"
    )
    assert to_text([UNTIMED]).splitlines()[-1] == "the gate passes"
    assert "; there is no GPU" in to_text([UNTIMED])


def test_markdown() -> None:
    text = to_markdown([PASSED, SLOW])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2] == "| ✅ | fast.py against train.py | passed | 2.00x [2.00, 2.00] | 1.20x |"
    assert rows[3].startswith("| ❌ | fast.py against train.py |")
    assert "| data wait | 1 ms | 2 ms |" in rows
    assert "0.91x [0.91, 0.91] does not reach 1.20x" in text


def test_junit_has_two_tests_for_each_script() -> None:
    root = ElementTree.fromstring(to_junit([PASSED, UNTIMED, WRONG, SLOW, BROKEN]))
    (suite,) = root
    assert root.tag == "testsuites"
    assert suite.attrib == {
        "name": "torchopt gate",
        "tests": "10",
        "failures": "2",
        "errors": "1",
        "skipped": "3",
    }
    outcomes = [(case.get("name"), [child.tag for child in case]) for case in suite]
    assert outcomes == [
        ("equivalence", []),
        ("speed", []),
        ("equivalence", []),
        ("speed", ["skipped"]),
        ("equivalence", ["failure"]),
        ("speed", ["skipped"]),
        ("equivalence", []),
        ("speed", ["failure"]),
        ("equivalence", ["error"]),
        ("speed", ["skipped"]),
    ]
    failure = suite[4].find("failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == ("loss at step 2", WRONG.details)
    assert [skipped.text for skipped in suite[5]] == ["not measured"]
    slow = suite[7].find("failure")
    assert slow is not None
    assert slow.text == f"{SLOW.reason}\ndata wait: 1 ms -> 2 ms per step"


def test_what_a_script_prints_breaks_no_report() -> None:
    details = "Traceback\nRuntimeError: \x1b[31mred\x1b[0m \x00\ud800 ]]>\n````\n"
    failed = made(Gated.ORIGINAL_FAILED, "in `__init__` of <lambda>, __call__", details=details)
    root = ElementTree.fromstring(to_junit([failed]).encode())
    error = root.find(".//error")
    assert error is not None
    assert error.text == "Traceback\nRuntimeError: red \ufffd\ufffd ]]>\n````\n"
    lines = to_markdown([failed]).splitlines()
    assert lines[-5] == "`````"
    assert lines[-1] == "`````"
    assert lines[-7].endswith(r"in `__init__` of \<lambda>, \_\_call\_\_")


def test_annotations_are_one_line_at_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named from the root of the checkout, wherever the command runs."""
    monkeypatch.setenv("GITHUB_WORKSPACE", "/p")
    text = to_annotations([PASSED, made(Gated.TOO_SLOW, "90% of\nthe speed")])
    assert text == (
        "::error file=fast.py,title=torchopt gate (not fast enough)::90%25 of%0Athe speed\n"
    )
    job = replace(PASSED.job, after=ScriptVersion(Path("/p/a, b/c:d.py")))
    text = to_annotations([Judgement(job, Gated.TOO_SLOW, "why")])
    assert text.startswith("::error file=a%2C b/c%3Ad.py,title=")
