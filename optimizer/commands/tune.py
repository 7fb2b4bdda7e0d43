"""``torchopt tune``: measure each change on this machine, keep what pays, pick the numbers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import gpus
from ..config import Format, Settings, load_settings
from ..errors import ExitCode, TorchoptError
from ..failure_hints import input_hint
from ..options import Target
from ..terminal import SignsOfLife, display_path, print_error, print_note
from .flags import (
    Action,
    Amp,
    CompileModeName,
    Ignore,
    PlainFormatName,
    Processes,
    Python,
    Seed,
    Select,
    Steps,
    TargetName,
    TierName,
    Timeout,
    Torch,
    refuse_formats_of_rewrite,
)
from .rewrite import write_files
from .verify import WIDTH_OF_A_FILE, verify_settings

if TYPE_CHECKING:
    from ..pipeline.rewrite import Rewritten

_BUDGET_MINUTES = 15.0


def tune(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script.")],
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget", metavar="MINUTES", help="About how long it may take (default: 15)."
        ),
    ] = None,
    resume: Annotated[
        bool | None,
        typer.Option("--resume/--no-resume", help="Go on with a search that was interrupted."),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            "--batch-sizes",
            metavar="N,...",
            help="Also measure these batch sizes, which train differently; written only with --tier semantic.",
        ),
    ] = None,
    dry_run: Annotated[
        bool | None,
        typer.Option("--dry-run/--no-dry-run", help="Write nothing; show the diff of the winner."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the one changed file here."),
    ] = None,
    steps: Steps = None,
    seed: Seed = None,
    timeout: Timeout = None,
    repeats: Annotated[
        str | None,
        typer.Option(
            "--repeats", metavar="N", help="Timed runs of winner and original (default: 3)."
        ),
    ] = None,
    format: PlainFormatName = None,
    python: Python = None,
    tier: TierName = None,
    select: Select = None,
    ignore: Ignore = None,
    target: TargetName = None,
    torch: Torch = None,
    amp: Amp = None,
    compile_mode: CompileModeName = None,
    nproc_per_node: Processes = None,
) -> Action:
    """Find the rewrite that is fastest on this machine.

    Tries the changes one after the other, keeps those that pay, then other numbers of workers and of batches made ahead,
    half-precision types and modes of torch.compile.
    What wins is verified before it is written. Interrupting it loses nothing: see --resume.
    What follows -- is passed to the script.
    """
    said = dict(budget=budget, resume=resume, dry_run=dry_run, output=output, steps=steps)
    said |= dict(seed=seed, timeout=timeout, repeats=repeats, format=format, python=python)
    said |= dict(tier=tier, select=select, ignore=ignore, target=target, torch=torch, amp=amp)
    said |= dict(compile_mode=compile_mode, batch_sizes=batch_sizes)
    said |= dict(nproc_per_node=nproc_per_node)
    flags = Settings.from_flags(said)
    refuse_formats_of_rewrite(flags)
    return lambda arguments: _tune(Path(script).absolute(), flags, arguments)


def _tune(script: Path, flags: Settings, arguments: tuple[str, ...]) -> int:
    from ...transforms.registry import all_transforms
    from ..profiling.profile import ScriptFailed
    from ..source import SourceFile, parse
    from ..tuning import report
    from ..tuning.tune import TuneSettings
    from ..tuning.tune import tune as search

    parse(SourceFile.read(script))
    settings = flags.over(load_settings(script.parent))
    wanted = TuneSettings(
        verify_settings(settings),
        60.0 * (settings.budget or _BUDGET_MINUTES),
        Path.cwd() / f".torchopt-tune-{script.stem}.json",
        resume=bool(settings.resume),
        batch_sizes=settings.batch_sizes or (),
    )
    options = settings.options_in(script.parent)
    if options.target is Target.AUTO and not gpus.visible_gpus(wanted.verify.python):
        options = replace(options, target=Target.CPU)  # what is measured is this machine
    try:
        with SignsOfLife() as signs:
            tuned = search(script, all_transforms(), options, arguments, wanted, signs.tell)
    except ScriptFailed as failed:
        print(failed.details, file=sys.stderr)
        code = ExitCode.SCRIPT_FAILED
        told = f"fails by itself{input_hint(failed.details, script)}"
        raise TorchoptError(told, script, exit_code=code) from None
    except KeyboardInterrupt:
        if wanted.journal.exists():
            print_note(f"{display_path(wanted.journal)} has what was measured: go on with --resume")
        raise
    wanted.journal.unlink(missing_ok=True)
    written = None
    if tuned.rewritten is not None:
        written = None if settings.dry_run else settings.output or script
        _show_or_write(tuned.rewritten, settings)
    if settings.format is Format.JSON:
        sys.stdout.write(report.to_json(script, tuned, written))
        return ExitCode.OK
    from rich.console import Console

    stream = sys.stderr if settings.dry_run else sys.stdout
    report.render_text(
        tuned, Console(file=stream, width=None if stream.isatty() else WIDTH_OF_A_FILE)
    )
    if written is not None:
        print(f"Written: {display_path(written)}")
    return ExitCode.OK


def _show_or_write(rewritten: Rewritten, settings: Settings) -> None:
    from .diffs import print_diff

    for error in rewritten.errors:
        print_error(error)
    if not settings.dry_run:
        write_files(rewritten, settings.output)
    elif settings.format is not Format.JSON:
        print_diff(rewritten.changed)
