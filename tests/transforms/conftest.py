"""Helpers every transform's tests use: rewrite a small script through the real pipeline and look at the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeAlias

import pytest

from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.options import Options, Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult, rewrite_script
from torchopt_cli.optimizer.source import Sources
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import verify
from torchopt_cli.transforms.registry import all_transforms, broken_transforms

from . import table

pytest_addoption = table.pytest_addoption
pytest_terminal_summary = table.pytest_terminal_summary

Files: TypeAlias = str | Mapping[str, str]
LINUX = Options(tier=Tier.SEMANTIC, platform="linux", python_version=(3, 12), torch_version=(2, 15))
"""The user's environment in tests, whatever machine they run on."""


def _write(folder: Path, files: Files) -> tuple[Path, dict[Path, str]]:
    named = {"train.py": files} if isinstance(files, str) else files
    written: dict[Path, str] = {}
    for name, text in named.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        written[path] = dedent(text).lstrip("\n")
        path.write_text(written[path])
    return next(iter(written)), written


@pytest.fixture
def rewrite(tmp_path: Path) -> Callable[..., RewriteResult]:
    """``rewrite(files, names, **options)``: apply the named transforms to ``files`` in memory."""

    def run(files: Files, names: list[str], **options: Any) -> RewriteResult:
        entry, _ = _write(tmp_path, files)
        transforms = [t for t in all_transforms() if t.name in names]
        broken = [(one.name, one.error) for one in broken_transforms()]
        assert {t.name for t in transforms} == set(names), f"unknown in {names}; broken: {broken}"
        chosen = replace(LINUX, **{"select": frozenset(names), **options})
        return rewrite_script(entry, Sources(), transforms, chosen)

    return run


@pytest.fixture
def count_case(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``count_case(transform, kind)``: for the table of ``--transform-table``, if the test passes."""

    def count(transform: str, kind: str) -> None:
        request.node.user_properties.append((table.PROPERTY, (transform, kind)))

    return count


@pytest.fixture
def check_with(
    tmp_path: Path,
    rewrite: Callable[..., RewriteResult],
    count_case: Callable[[str, str], None],
) -> Callable[..., None]:
    """``check_with(names, before, after)``: the text after, and that a second run changes nothing."""

    def check(names: list[str], before: Files, after: Files, **options: Any) -> None:
        if before != after:
            count_case(names[0], table.TRANSFORMED)
        result = rewrite(before, names, **options)
        expected_folder = tmp_path / "expected"
        _, expected = _write(expected_folder, after)
        actual = {file.path: file.text for file in result.files}
        assert not [error for file in result.files for error in file.errors]
        for path, text in expected.items():
            original = tmp_path / path.relative_to(expected_folder)
            assert actual.get(original, original.read_text()) == text
        again = {str(p.relative_to(expected_folder)): t for p, t in expected.items()}
        second = rewrite(again, names, **options)
        assert [c for file in second.files for c in file.changes] == []

    return check


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The transform a test module is about: ``test_pin_memory.py`` is about ``pin-memory``."""
    return Path(str(request.path)).stem.removeprefix("test_").replace("_", "-")


@pytest.fixture
def check_transformed(name: str, check_with: Callable[..., None]) -> Callable[..., None]:
    """``check_transformed(before, after, **options)``; options are fields of :class:`Options`: ``target=Target.CPU``."""

    def check(before: Files, after: Files, **options: Any) -> None:
        check_with([name], before, after, **options)

    return check


@pytest.fixture
def check_noop(
    name: str,
    rewrite: Callable[..., RewriteResult],
    count_case: Callable[[str, str], None],
) -> Callable[..., None]:
    """``check_noop(source, reason)``: nothing changes, and a skip says ``reason``; none says anything if ``silent``."""

    def check(
        source: Files, reason: str | None = None, *, silent: bool = False, **options: Any
    ) -> None:
        count_case(name, table.NOOP)
        result = rewrite(source, [name], **options)
        assert [c for file in result.files for c in file.changes] == []
        assert not [error for file in result.files for error in file.errors]
        messages = [skip.message for file in result.files for skip in file.skips]
        if silent:
            assert messages == []
        if reason is not None:
            assert any(reason in message for message in messages), messages

    return check


@pytest.fixture
def check_verified(
    name: str,
    tmp_path: Path,
    rewrite: Callable[..., RewriteResult],
    count_case: Callable[[str, str], None],
    warm_python: Path,
) -> Callable[..., None]:
    """``check_verified(source)``: the transform changes ``source``, and a run of both versions finds them equal."""

    def check(source: str, names: list[str] | None = None, **options: Any) -> None:
        count_case(name, table.VERIFIED)
        result = rewrite(source, names or [name], **options)
        assert any(change.transform == name for file in result.files for change in file.changes), [
            skip for file in result.files for skip in file.skips
        ]
        after = tmp_path / "rewritten.py"
        after.write_text(result.files[0].text)
        tier = next(t.tier for t in all_transforms() if t.name == name)
        report = verify(
            ScriptVersion(result.entry),
            ScriptVersion(after),
            VerifySettings(
                warm_python,
                tmp_path,
                tier=tier,
                steps=12,  # schedules, accumulation and scalers show after some steps only
                timeout_s=300.0,  # the first import of a library takes long on a busy machine
                measure_speed=False,
                env={"OMP_NUM_THREADS": "1"},
            ),
        )
        assert report.verdict is not None, report.original_failure
        assert report.verdict.outcome is Outcome.EQUIVALENT, report.verdict.findings

    return check


@pytest.fixture
def check_advised(
    name: str,
    rewrite: Callable[..., RewriteResult],
    count_case: Callable[[str, str], None],
) -> Callable[..., None]:
    """``check_advised(source, *messages)``: this advice is given, in this order, and nothing is changed."""

    def check(
        source: Files, *messages: str, names: list[str] | None = None, **options: Any
    ) -> None:
        count_case(name, table.TRANSFORMED if messages else table.NOOP)
        result = rewrite(source, names or [name], **options)
        assert not [error for file in result.files for error in file.errors]
        assert not any(file.changed for file in result.files)
        given = [item for file in result.files for item in file.advice]
        assert [item.message for item in given] == list(messages)

    return check
