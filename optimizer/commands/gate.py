"""``torchopt gate``: fails a build when a rewrite no longer trains the same, or is not fast enough."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .. import gpus
from ..environment import find_python
from ..errors import TorchoptError
from ..terminal import print_note, progress_bar
from .flags import Action, Processes, Python, Seed, Steps, TierName, Timeout


def gate(
    scripts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT",
            help="The scripts to gate (default: those of [tool.torchopt.gate]).",
        ),
    ] = None,
    original: Annotated[
        str | None,
        typer.Option("--original", metavar="FILE", help="What the one SCRIPT is a rewrite of."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="REF", help="Compare with the same scripts in this commit."),
    ] = None,
    minimum_speedup: Annotated[
        str | None,
        typer.Option(
            "--minimum-speedup",
            metavar="FACTOR",
            help="What the lower end of the speedup has to reach (default: 1, against a commit 0.95).",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="auto|cuda|cpu",
            help="Where to gate (default: auto, on a GPU if there is one).",
        ),
    ] = None,
    steps: Steps = None,
    repeats: Annotated[
        str | None,
        typer.Option(
            "--repeats", metavar="N", help="The most timed runs of each version (default: 24)."
        ),
    ] = None,
    seed: Seed = None,
    timeout: Timeout = None,
    tier: TierName = None,
    python: Python = None,
    nproc_per_node: Processes = None,
    junit: Annotated[
        str | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML here.")
    ] = None,
    summary: Annotated[
        str | None,
        typer.Option(
            "--summary",
            metavar="FILE",
            help="Write a markdown summary here (on GitHub it also goes to the job's summary).",
        ),
    ] = None,
) -> Action:
    """Fail a build whose training changed or got slower.

    Fails when a script does not train the same as before, or is not fast enough. Compares a committed rewrite with its original, or the scripts of a working tree with those of a commit.
    Every option is also a key of [tool.torchopt.gate] in pyproject.toml. What follows -- is passed to the scripts.
    """
    said: dict[str, object] = dict(base=base, minimum_speedup=minimum_speedup, device=device)
    said |= dict(steps=steps, repeats=repeats, seed=seed, timeout=timeout, tier=tier)
    said |= dict(nproc_per_node=nproc_per_node)
    said |= dict(python=python, junit=junit, summary=summary)
    named = [Path(script) for script in scripts or ()]
    compared = Path(original) if original else None
    return lambda arguments: _gate(named, compared, said, arguments)


def _gate(
    named: list[Path],
    original: Path | None,
    said: dict[str, object],
    arguments: tuple[str, ...],
) -> int:
    from ..gate import jobs, reports
    from ..gate.judge import MOST_PAIRS, Limits
    from ..gate.settings import Device, GatedScript, from_flags, load_gate_settings

    flags = from_flags(said)
    if original is not None and len(named) != 1:
        raise TorchoptError("--original: takes one SCRIPT, which is its rewrite")
    if original is not None and flags.base is not None:
        raise TorchoptError(
            "--original: compares with that file, not with a commit: leave --base out"
        )
    folder = named[0].parent if named else Path.cwd()
    settings = flags.over(load_gate_settings(folder))
    if named:
        configured = {os.path.realpath(one.script): one for one in settings.scripts or ()}
        chosen = [configured.get(os.path.realpath(p), GatedScript(p)) for p in named]
        if original is not None:
            chosen = [replace(chosen[0], original=original)]
        settings = replace(settings, scripts=tuple(chosen))
    reported = [path for path in (settings.junit, settings.summary) if path is not None]
    _refuse_unwritable(reported)
    jobs.scripts_of(settings)  # before torch is asked for GPUs, which takes seconds or is not there
    interpreter = find_python(settings.python)
    wanted = settings.device is not Device.CPU
    visible = gpus.visible_gpus(interpreter) if wanted else ()
    asked = jobs.jobs_of(settings, visible, folder, arguments)
    limits = Limits(
        python=interpreter,
        cwd=Path.cwd(),
        seed=settings.seed or 0,
        timeout_s=settings.timeout or 600.0,
        pairs=settings.repeats or MOST_PAIRS,
    )
    with progress_bar() as show:
        done = jobs.judge_all(asked, limits, visible, lambda n, what: show(n, len(asked), what))
    sys.stdout.write(reports.to_text(done))
    for path, text in (
        (settings.junit, reports.to_junit(done)),
        (settings.summary, reports.to_markdown(done)),
    ):
        if path is not None:
            _write(path, text)
    github = os.environ.get("GITHUB_STEP_SUMMARY")
    if github:
        try:
            with open(github, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(reports.to_markdown(done))
        except OSError as error:
            print_note(f"GITHUB_STEP_SUMMARY: {github} cannot be written: {error.strerror}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        sys.stdout.write(reports.to_annotations(done))
    return reports.exit_code(done)


def _refuse_unwritable(reports: Sequence[Path]) -> None:
    """Raises TorchoptError now, not when all is measured."""
    for path in reports:
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _write(path: Path, text: str) -> None:
    with _told(path):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def _told(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise TorchoptError(f"cannot be written: {error.strerror}", path) from None
