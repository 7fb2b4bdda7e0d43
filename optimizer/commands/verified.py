"""``torchopt rewrite --verify``: what a rewrite of several scripts leaves when each is verified."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO, TypeAlias

from ..config import Settings
from ..errors import TorchoptError
from ..measuring.ablation import measure_gains
from ..pipeline.result import RewriteResult
from ..pipeline.rewrite import Rewritten
from ..terminal import progress_bar
from ..verifying.settings import VerifySettings
from ..verifying.verification import Progress
from ..verifying.verified_rewrite import (
    Ending,
    Rewrite,
    Tell,
    VerifiedRewrite,
    applied,
    verified_rewrite,
)
from ..verifying.verified_rewrite_report import render_text
from .verify import WIDTH_OF_A_FILE, verify_settings

RewriteWithout: TypeAlias = Callable[[Iterable[Path], frozenset[str]], Rewritten]
"""Rewrites these scripts without the transforms of these names."""


def verify_and_roll_back(
    rewritten: Rewritten,
    rewrite_without: RewriteWithout,
    transforms: Sequence[str],
    settings: Settings,
    arguments: tuple[str, ...],
) -> tuple[VerifiedRewrite, ...]:
    """Verify what ``rewritten`` holds, scripts that change a file in common together, and roll back what is wrong.

    Scripts that stay as they are, are left out. Where one shows nothing to compare it is left as it is, with those it is
    verified with, and the others go on; TorchoptError is raised where there are no others.
    """
    wanted = verify_settings(settings)
    groups = _groups(rewritten)
    done: list[VerifiedRewrite] = []
    with progress_bar() as show:
        before = 0

        def tell(what: str, progress: Progress) -> None:
            nonlocal before
            to_come = progress.total - progress.done
            show(before, before + to_come, f"{what}: {progress.description}")
            before += 1

        for group in groups:
            scripts = [result.entry for result in group.results]

            def rewrite(
                ignored: frozenset[str],
                group: Rewritten = group,
                scripts: Sequence[Path] = tuple(scripts),
            ) -> Rewritten:
                return rewrite_without(scripts, ignored) if ignored else group

            try:
                part = verified_rewrite(rewrite, transforms, wanted, arguments, tell)
            except TorchoptError as error:
                if error.path is None or len(groups) == 1:
                    raise
                unchanged, how = rewrite(frozenset(transforms)), Ending.NOT_COMPARED
                part = VerifiedRewrite(tuple(scripts), unchanged, (), how, (), 0, 0, error=error)
            if settings.attribute:
                part = _attributed(part, rewrite, transforms, wanted, arguments, tell)
            done.append(part)
    return tuple(done)


def _attributed(
    part: VerifiedRewrite,
    rewrite: Rewrite,
    transforms: Sequence[str],
    settings: VerifySettings,
    arguments: tuple[str, ...],
    tell: Tell,
) -> VerifiedRewrite:
    """``part`` with what each transform buys that is left, in every script whose speed was measured."""
    gone = frozenset(transforms) - frozenset(applied(part.rewritten, transforms))

    def without(ignored: frozenset[str]) -> Rewritten:
        return rewrite(ignored | gone) if ignored else part.rewritten

    ablations = tuple(
        measure_gains(
            report.original.entry,
            without,
            transforms,
            settings,
            report.measurement.original.round_seconds,
            arguments,
            tell,
        )
        for report in part.reports
        if part.ending is Ending.VERIFIED and report.measurement is not None
    )
    return replace(part, ablations=ablations)


def what_is_left(rewritten: Rewritten, verified: Iterable[VerifiedRewrite]) -> Rewritten:
    """``rewritten`` with what became of its scripts when they were verified."""
    results = {result.entry: result for result in rewritten.results}
    files = {file.path: file for file in rewritten.files}
    for part in verified:
        left = {file.path: file for file in part.rewritten.files}
        for result in rewritten.results:
            for file in result.files if result.entry in part.scripts else ():
                if file.path in files and files[file.path].changed and file.path not in left:
                    del files[file.path]  # a new file that is no longer wanted
        files |= {
            path: file
            for path, file in left.items()
            if path not in files or file.changed or files[path].changed
        }
        results |= {result.entry: result for result in part.rewritten.results}
    return replace(rewritten, results=tuple(results.values()), files=tuple(files.values()))


def tell(verified: Iterable[VerifiedRewrite], stream: TextIO) -> None:
    """Print what was verified and what was rolled back on ``stream``."""
    from rich.console import Console

    width = None if stream.isatty() else WIDTH_OF_A_FILE
    for part in verified:
        render_text(part, Console(file=stream, width=width))


def _groups(rewritten: Rewritten) -> list[Rewritten]:
    """The results that change something, those together that change a file in common, with their files."""
    final = {file.path: file for file in rewritten.files}
    groups: list[tuple[set[Path], list[RewriteResult]]] = []
    for result in rewritten.results:
        changed = {file.path for file in result.files if final[file.path].changed}
        if not changed:
            continue
        joined = [group for group in groups if group[0] & changed]
        groups = [group for group in groups if group not in joined]
        paths = changed.union(*(paths for paths, _ in joined))
        groups.append((paths, [r for _, results in joined for r in results] + [result]))
    return [
        replace(
            rewritten,
            results=tuple(results),
            files=tuple(
                {file.path: final[file.path] for r in results for file in r.files}.values()
            ),
            errors=(),
        )
        for _, results in groups
    ]
