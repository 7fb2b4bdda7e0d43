"""``torchopt verify``: run a script and its rewrite, tell whether they train the same and how fast."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ..config import Format, Settings, load_settings
from ..environment import find_python
from ..errors import ExitCode, TorchoptError
from ..options import Tier
from ..terminal import display_path, print_error, progress_bar
from .flags import (
    Accumulate,
    Action,
    Amp,
    Attribute,
    CompileModeName,
    EmulateCuda,
    Gpus,
    Ignore,
    PlainFormatName,
    Prefetch,
    Processes,
    Profile,
    Python,
    Select,
    Steps,
    SyncBatchNorm,
    TargetName,
    TierName,
    Timeout,
    Torch,
    Workers,
    refuse_formats_of_rewrite,
)

if TYPE_CHECKING:
    from ..execution.runner import ScriptVersion
    from ..measuring.ablation import Ablation
    from ..pipeline.result import RewrittenFile
    from ..pipeline.rewrite import Rewritten
    from ..verifying.result import VerificationReport
    from ..verifying.settings import VerifySettings

WIDTH_OF_A_FILE = 120


def verify(
    original: Annotated[str, typer.Argument(metavar="ORIGINAL", help="The script as it was.")],
    rewritten: Annotated[
        str | None,
        typer.Argument(
            metavar="REWRITTEN",
            help="The script to compare it with (default: what `torchopt rewrite` makes of it).",
        ),
    ] = None,
    steps: Steps = None,
    seed: Annotated[
        str | None,
        typer.Option("--seed", metavar="N", help="Seed of the runs compared (default: 0)."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="N",
            help="Compare the losses at the end over N seeds (default: 5 where training is changed, else 1).",
        ),
    ] = None,
    timeout: Timeout = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Memory of each run (12GiB; default: 90% of what is free).",
        ),
    ] = None,
    disk_limit: Annotated[
        str | None,
        typer.Option(
            "--disk-limit",
            metavar="SIZE",
            help="What each run may write (default: half of the free disk).",
        ),
    ] = None,
    nproc_per_node: Processes = None,
    no_timing: Annotated[
        bool | None,
        typer.Option("--no-timing/--timing", help="Compare only; do not measure the speed."),
    ] = None,
    repeats: Annotated[
        str | None,
        typer.Option("--repeats", metavar="N", help="Timed runs of each version (default: 3)."),
    ] = None,
    attribute: Attribute = None,
    format: PlainFormatName = None,
    python: Python = None,
    tier: TierName = None,
    select: Select = None,
    ignore: Ignore = None,
    target: TargetName = None,
    gpus: Gpus = None,
    accumulate: Accumulate = None,
    workers: Workers = None,
    prefetch: Prefetch = None,
    profile: Profile = None,
    sync_batchnorm: SyncBatchNorm = None,
    torch: Torch = None,
    amp: Amp = None,
    compile_mode: CompileModeName = None,
    emulate_cuda: EmulateCuda = None,
) -> Action:
    """Run a script and its rewrite and compare them.

    Tells whether they train the same, and which is faster.
    Both run in a scratch copy of the project: no file of yours is touched. What follows -- is passed to
    the scripts.
    """
    said = dict(
        steps=steps, seed=seed, seeds=seeds, timeout=timeout, no_timing=no_timing, repeats=repeats
    )
    said |= dict(memory_limit=memory_limit, disk_limit=disk_limit)
    said |= dict(nproc_per_node=nproc_per_node)
    said |= dict(format=format, python=python, tier=tier, select=select, ignore=ignore)
    said |= dict(target=target, gpus=gpus, accumulate=accumulate, torch=torch, amp=amp)
    said |= dict(compile_mode=compile_mode)
    said |= dict(workers=workers, prefetch=prefetch, profile=profile)
    said |= dict(sync_batchnorm=sync_batchnorm)
    said |= dict(attribute=attribute)
    said |= dict(emulate_cuda=emulate_cuda)
    flags = Settings.from_flags(said)
    refuse_formats_of_rewrite(flags)
    other = Path(rewritten) if rewritten else None
    return lambda arguments: _verify(Path(original), other, flags, arguments)


def verify_changes(
    entry: Path, files: Iterable[RewrittenFile], settings: Settings, arguments: tuple[str, ...]
) -> VerificationReport:
    """Verify what a rewrite made of the script ``entry``: the changed ``files`` against those on disk.

    Judged at the highest tier of the changes. Raises TorchoptError when there is nothing to compare.
    """
    from ..execution.script_versions import original_version
    from ..verifying.verified_rewrite import changed_version, claimed_tier

    changed = [file for file in files if file.changed]
    before = original_version(entry, arguments, settings.nproc_per_node)
    after = changed_version(before, changed, settings.nproc_per_node)
    after = replace(after, processes=settings.nproc_per_node or after.processes)
    return _compared(before, after, claimed_tier(changed), settings)


def tell(
    report: VerificationReport, ablation: Ablation | None, as_json: bool, stream: TextIO
) -> ExitCode:
    """Print ``report``, and the ``ablation`` if there was one, on ``stream``; gives the exit status it asks for."""
    from ..measuring import ablation_report
    from ..verifying import report as verification_report

    if as_json:
        document: dict[str, object] = {**verification_report.to_json(report)}
        if ablation is not None:
            document["attribution"] = ablation_report.to_json(ablation)
        json.dump(document, stream, indent=2)
        stream.write("\n")
        if report.original_failure is not None:
            print(report.original_failure.details, file=sys.stderr)
    else:
        from rich.console import Console

        width = None if stream.isatty() else WIDTH_OF_A_FILE
        console = Console(file=stream, width=width)
        verification_report.render_text(report, console)
        if ablation is not None:
            ablation_report.render_text(ablation, console)
    return verification_report.exit_code(report)


def _verify(
    original: Path, rewritten: Path | None, flags: Settings, arguments: tuple[str, ...]
) -> int:
    settings = flags.over(load_settings(original.parent))
    original = original.absolute()
    ablation: Ablation | None = None
    if settings.attribute and settings.no_timing:
        raise TorchoptError("--attribute measures speed, which --no-timing forbids")
    if settings.attribute and settings.emulate_cuda:
        raise TorchoptError("--attribute measures speed, which an emulated device does not have")
    if rewritten is None:
        report, ablation = _verify_rewrite(original, settings, arguments)
    elif flags.attribute:
        raise TorchoptError("--attribute is about torchopt's own rewrite: leave out REWRITTEN")
    else:
        from ..execution.script_versions import beside, original_version
        from ..source import SourceFile, parse

        parse(SourceFile.read(original))
        after = beside(original, rewritten.absolute(), arguments)
        after = replace(after, processes=settings.nproc_per_node)
        before = original_version(original, arguments, settings.nproc_per_node)
        report = _compared(before, after, settings.tier, settings)
    if report is None:
        return ExitCode.OK
    return tell(report, ablation, settings.format is Format.JSON, sys.stdout)


def _verify_rewrite(
    script: Path, settings: Settings, arguments: tuple[str, ...]
) -> tuple[VerificationReport | None, Ablation | None]:
    """Rewrite ``script`` in memory and verify that; None when there is nothing to rewrite."""
    from ...transforms.registry import all_transforms
    from ..pipeline.rewrite import rewrite_all
    from .catalogue import report_broken_transforms

    report_broken_transforms()
    options, transforms = settings.options_in(script.parent), all_transforms()

    def rewrite(ignored: frozenset[str]) -> Rewritten:
        wanted = replace(options, ignore=options.ignore | ignored)
        return rewrite_all([script], transforms, lambda _: wanted)

    done = rewrite(frozenset())
    if not done.results:
        raise done.errors[0]
    for error in done.errors:
        print_error(error)
    if not done.changed:
        print(f"{display_path(script)}: nothing to rewrite")
        return None, None
    report = verify_changes(script, done.changed, settings, arguments)
    if not settings.attribute or report.measurement is None:
        return report, None
    from .attribute import attributed

    pace = report.measurement.original.round_seconds
    return report, attributed(script, rewrite, transforms, pace, settings, arguments)


def _compared(
    before: ScriptVersion, after: ScriptVersion, tier: Tier | None, settings: Settings
) -> VerificationReport:
    from ..verifying import verification

    wanted = verify_settings(settings, tier)
    with progress_bar() as show:
        return verification.verify(
            before, after, wanted, lambda p: show(p.done, p.total, p.description)
        )


def verify_settings(settings: Settings, tier: Tier | None = None) -> VerifySettings:
    """How to verify what claims ``tier``, by the user's ``settings``."""
    from ..verifying.settings import EPOCH_SECONDS, VerifySettings

    defaults = VerifySettings(find_python(settings.python), Path.cwd())
    return VerifySettings(
        python=defaults.python,
        cwd=defaults.cwd,
        tier=tier,
        steps=settings.steps or defaults.steps,
        epoch_seconds=0.0 if settings.steps else EPOCH_SECONDS,
        seed=defaults.seed if settings.seed is None else settings.seed,
        seeds=settings.seeds,
        timeout_s=settings.timeout or defaults.timeout_s,
        memory_limit=settings.memory_limit,
        disk_limit=settings.disk_limit,
        pairs=settings.repeats or defaults.pairs,
        measure_speed=not settings.no_timing,
        processes=settings.nproc_per_node,
        emulated_gpus=(settings.gpus or 1) if settings.emulate_cuda else 0,
    )
