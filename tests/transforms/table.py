"""``pytest tests/transforms --transform-table``: how well each transform is tested, and where it fires in the corpus.

Counts what passed in this very run. It fails when a cell is empty, and when a transform has not more cases in which nothing
may change than cases in which something does. For advice, "transformed" is "advised", and there are no two versions to
verify.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from torchopt_cli.optimizer.options import Options, Tier
from torchopt_cli.optimizer.pipeline.rewrite import rewrite_script
from torchopt_cli.optimizer.source import Sources
from torchopt_cli.transforms.base import Advisor, Transform
from torchopt_cli.transforms.registry import all_transforms

PROPERTY = "transform-case"
TRANSFORMED, NOOP, VERIFIED = "transformed", "no-op", "verified"
CORPUS = Path(__file__).parents[2] / "corpus"
_FLAG = "--transform-table"
_NOT_IN_CORPUS = frozenset({"torchrun", "foreach-updates"})
"""Transforms of scripts that the corpus has none of: verify does not see those of the first train; the second is about target
networks, moving averages and clipping by hand."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        _FLAG, action="store_true", help="print the table of transforms and their cases"
    )


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not config.getoption(_FLAG):
        return
    cases: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.getreports("passed"):
        if report.when == "call":
            cases.update(tuple(case) for name, case in report.user_properties if name == PROPERTY)
    terminalreporter.section("transforms")
    heading = f"{'transform':<22}{'transformed':>12}{'no-op':>8}{'verified':>10}  fires on"
    terminalreporter.write_line(heading)
    lacking: list[str] = []
    for transform in all_transforms():
        scripts = corpus_scripts(transform)
        counts = [cases[transform.name, kind] for kind in (TRANSFORMED, NOOP, VERIFIED)]
        verified = "-" if isinstance(transform, Advisor) else str(counts[2])
        missing = _missing(transform, counts, scripts)
        if missing:
            lacking.append(f"{transform.name} lacks {', '.join(missing)}")
        terminalreporter.write_line(
            f"{transform.name:<22}{counts[0]:>12}{counts[1]:>8}{verified:>10}  {', '.join(scripts)}",
            red=bool(missing),
        )
    session = config.pluginmanager.get_plugin("session")
    if lacking and session is not None:
        for line in lacking:
            terminalreporter.write_line(line, red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _missing(transform: Transform, counts: list[int], scripts: list[str]) -> list[str]:
    """What the tests of ``transform`` lack, in words; ``counts`` are of the cases transformed, left alone, verified."""
    transformed, noop, verified = counts
    missing = [] if transformed else ["a case in which something changes"]
    if noop <= transformed:
        missing.append("more cases in which nothing changes")
    if not verified and not isinstance(transform, Advisor):
        missing.append("a verified run")
    if not scripts and transform.name not in _NOT_IN_CORPUS:
        missing.append("a script of the corpus that it fires on (or a reason in `_NOT_IN_CORPUS`)")
    return missing


@cache
def _changed_by_all(script: Path) -> frozenset[str]:
    """The transforms that do something to ``script`` when all are applied: some only act on what others made."""
    options = Options(tier=Tier.SEMANTIC, platform="darwin")
    files = rewrite_script(script, Sources(), all_transforms(), options).files
    return frozenset(item.transform for file in files for item in (*file.changes, *file.advice))


def corpus_scripts(transform: Transform) -> list[str]:
    """The corpus scripts that ``transform`` changes, or advises about, with the others or when selected."""
    options = Options(tier=Tier.SEMANTIC, select=frozenset({transform.name}), accumulate=2)
    found: list[str] = []
    for script in sorted(CORPUS.glob("*/train.py")):
        result = rewrite_script(script, Sources(), [transform], options)
        fires = any(file.changed or file.advice for file in result.files)
        if fires or transform.name in _changed_by_all(script):
            found.append(script.parent.name)
    return found
