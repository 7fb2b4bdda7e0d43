"""``torchopt rewrite``: rewrite scripts in place, or show what that would do."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import Format, Settings, load_settings
from ..discovery import Discovery, discover
from ..errors import ExitCode, TorchoptError
from ..options import Options
from ..terminal import display_path, painter, print_error, print_note, with_progress
from .flags import (
    Accumulate,
    Action,
    Amp,
    Attribute,
    CompileModeName,
    EmulateCuda,
    FormatName,
    Gpus,
    Ignore,
    Jobs,
    Paths,
    Prefetch,
    Processes,
    Profile,
    Python,
    Select,
    SyncBatchNorm,
    TargetName,
    TierName,
    Torch,
    Workers,
)

if TYPE_CHECKING:
    from ...transforms.base import Transform
    from ..pipeline.interactive import Questions
    from ..pipeline.report import FileReport
    from ..pipeline.rewrite import Rewritten
    from ..verifying.verified_rewrite import VerifiedRewrite


def rewrite(
    paths: Paths,
    dry_run: Annotated[
        bool | None,
        typer.Option(
            "--dry-run/--no-dry-run", help="Write nothing; show the diff, each hunk attributed."
        ),
    ] = None,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check", help="Write nothing; exit with 1 if anything would change."
        ),
    ] = None,
    interactive: Annotated[
        bool | None,
        typer.Option(
            "--interactive/--no-interactive", help="Ask about each change: y, n, q or ? for help."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the one changed file here."),
    ] = None,
    split_patches: Annotated[
        str | None,
        typer.Option(
            "--split-patches",
            metavar="DIR",
            help="Leave the scripts alone; write a patch per transform here, for `git apply`.",
        ),
    ] = None,
    select: Select = None,
    ignore: Ignore = None,
    tier: TierName = None,
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
    format: FormatName = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Run both versions first; write only what trains the same, roll back the rest.",
        ),
    ] = None,
    attribute: Attribute = None,
    nproc_per_node: Processes = None,
    python: Python = None,
    emulate_cuda: EmulateCuda = None,
    jobs: Jobs = None,
) -> Action:
    """Rewrite scripts in place.

    Prints what was done, what was left alone, and why.
    What follows -- is passed to the script when --verify runs it.
    """
    said = dict(dry_run=dry_run, check=check, output=output, select=select, ignore=ignore)
    said |= dict(split_patches=split_patches, interactive=interactive)
    said |= dict(tier=tier, target=target, gpus=gpus, torch=torch, amp=amp, format=format)
    said |= dict(compile_mode=compile_mode)
    said |= dict(accumulate=accumulate, workers=workers, prefetch=prefetch, profile=profile)
    said |= dict(sync_batchnorm=sync_batchnorm)
    said |= dict(verify=verify, attribute=attribute, python=python)
    said |= dict(nproc_per_node=nproc_per_node)
    said |= dict(emulate_cuda=emulate_cuda, jobs=jobs)
    flags = Settings.from_flags(said)
    if "" in paths:  # an empty variable of a shell: Path would take it for the current folder
        raise TorchoptError("'' is not a path")
    return lambda script_arguments: _rewrite([Path(p) for p in paths], flags, script_arguments)


def _rewrite(paths: Sequence[Path], flags: Settings, script_arguments: tuple[str, ...]) -> int:
    from ...transforms.registry import all_transforms
    from .catalogue import report_broken_transforms

    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    settings = flags.over(load_settings(folder))
    _refuse_two_places(settings)
    transforms = all_transforms()
    known = frozenset(transform.name for transform in transforms)
    options_in = _options_in_folder(flags, script_arguments, known)
    report_broken_transforms()
    _note_what_cannot_run(transforms, options_in(folder))
    discovery = discover(paths)
    rewriter = Rewriter(transforms, options_in, _questions() if settings.interactive else None)
    rewritten = rewriter.rewrite(discovery, settings.jobs or 1)
    errors = (*discovery.errors, *rewritten.errors)
    for error in errors:
        print_error(error)
    _note_unnamed_devices(rewritten)
    verified: tuple[VerifiedRewrite, ...] | None = None
    verdict = ExitCode.OK
    if settings.verify:
        from ..verifying.verified_rewrite import exit_code
        from .verified import verify_and_roll_back, what_is_left

        verified = verify_and_roll_back(
            rewritten, rewriter.without, rewriter.changing, settings, script_arguments
        )
        rewritten = what_is_left(rewritten, verified)
        verdict = max(map(exit_code, verified), default=ExitCode.OK)
    written = False
    if not (settings.dry_run or settings.check or (verdict and not rewritten.changed)):
        written = _write(rewritten, verified, rewriter, settings)
    else:
        refuse_loss(rewritten)  # what is shown can be written
    _report(rewritten, errors, settings, written, verified)
    if errors:
        return ExitCode.USAGE
    return verdict or (ExitCode.FINDINGS if settings.check and rewritten.changed else ExitCode.OK)


@dataclass(frozen=True)
class Rewriter:
    """Rewrites scripts with ``transforms`` under the options of their folders, and again without some of them."""

    transforms: Sequence[Transform]
    options_in: Callable[[Path], Options]
    questions: Questions | None

    @property
    def changing(self) -> tuple[str, ...]:
        """The names of the transforms that change scripts; the others advise."""
        from ...transforms.registry import changing

        return changing(self.transforms)

    def rewrite(self, discovery: Discovery, jobs: int) -> Rewritten:
        """All that was discovered, in at most ``jobs`` processes at a time; in this one where questions are asked."""
        if self.questions is not None:
            return self.without(discovery.scripts, frozenset())
        jobs = min(jobs, len(discovery.groups))
        if jobs <= 1:
            return self.without(with_progress(discovery.scripts, "Rewriting"), frozenset())
        from ..pipeline.parallel import rewrite_in_processes

        return rewrite_in_processes(
            discovery.scripts,
            discovery.groups,
            self.transforms,
            lambda script: self.options_in(script.parent),
            jobs,
            lambda scripts: with_progress(scripts, "Rewriting"),
        )

    def without(self, scripts: Iterable[Path], ignored: frozenset[str]) -> Rewritten:
        """``scripts`` rewritten by the transforms whose names are not ``ignored``."""
        from ..pipeline.rewrite import rewrite_all

        def options(script: Path) -> Options:
            wanted = self.options_in(script.parent)
            return replace(wanted, ignore=wanted.ignore | ignored)

        return rewrite_all(scripts, self.transforms, options, self.questions)


def _note_unnamed_devices(rewritten: Rewritten) -> None:
    for result in rewritten.results:
        if result.trains and result.unnamed_device is not None:
            print_note(
                f"{display_path(result.entry)} is taken for a script for the CPU: it names no GPU; "
                f"if `{result.unnamed_device}` may be one, say --target cuda"
            )


def _write(
    rewritten: Rewritten,
    verified: Sequence[VerifiedRewrite] | None,
    rewriter: Rewriter,
    settings: Settings,
) -> bool:
    """Write the patches or the scripts that ``settings`` ask for; True if scripts were rewritten."""
    if settings.split_patches is None:
        write_files(rewritten, settings.output)
        return True
    from .split_patches import write_patches

    refuse_loss(rewritten)
    groups = [part.rewritten for part in verified] if verified is not None else [rewritten]
    write_patches(rewritten, groups, rewriter.without, rewriter.changing, settings.split_patches)
    return False


def _questions() -> Questions:
    from ..pipeline.interactive import Questions

    return Questions(sys.stdin, sys.stderr, painter(sys.stderr))


def _refuse_two_places(settings: Settings) -> None:
    if settings.split_patches is None:
        return
    if settings.output is not None:
        raise TorchoptError("--split-patches leaves the script alone: it does not go with --output")
    for flag, given in (("--dry-run", settings.dry_run), ("--check", settings.check)):
        if given:
            print_note(f"no patches are written: {flag} writes nothing")


def _options_in_folder(
    flags: Settings, script_arguments: tuple[str, ...], transforms: frozenset[str]
) -> Callable[[Path], Options]:
    """The options of the scripts in a folder, each folder being configured by what is nearest to it.

    They raise :class:`TorchoptError` for a configuration that names none of ``transforms``.
    """
    from ..configured_transforms import check_configured_transforms

    @cache
    def options_in(folder: Path) -> Options:
        check_configured_transforms(folder, transforms)
        options = flags.over(load_settings(folder)).options_in(folder)
        return replace(options, script_arguments=script_arguments)

    return options_in


def _note_what_cannot_run(transforms: Sequence[Transform], options: Options) -> None:
    """Tell what the user asked for and will not get; raises for names that are no transform's."""
    from ..pipeline.rewrite import selected_transforms

    selected_transforms(transforms, options)
    for transform in transforms:
        if transform.name in options.select and transform.asked_by is not None:
            if not transform.is_asked_for(options):
                print_note(f"{transform.name} only runs with --{transform.asked_by}")
        elif (
            transform.name in options.select
            and transform.tier > options.tier
            and not transform.advises
        ):
            tier = transform.tier.label
            print_note(f"{transform.name} is {tier}: it only runs with --tier {tier}")


def refuse_loss(rewritten: Rewritten) -> None:
    """Raise TorchoptError when anything but the edits would change."""
    from ..rewriting.losslessness import LossError, check_lossless

    for file in rewritten.changed:
        if file.created:
            continue
        try:
            check_lossless(file.original.text, file.text)
        except LossError as error:
            message = f"internal error: {error}; nothing was written"
            raise TorchoptError(message, file.path, error.line) from error


def write_files(rewritten: Rewritten, output: Path | None) -> None:
    """Write what changed, all files or none; the one file to ``output`` if that is given.

    Raises TorchoptError when anything but the edits would change, or ``output`` cannot hold it.
    """
    from ..source import write_all

    refuse_loss(rewritten)
    changed = rewritten.changed
    made = [file for file in changed if file.created]
    if output is None:
        write_all(file.original.with_text(file.text) for file in changed)
        return
    changed = tuple(file for file in changed if not file.created)
    for file in made:  # they name the script as it is called without --output
        print_note(f"{display_path(file.path)} is not written with --output")
    if len(changed) > 1:
        names = ", ".join(display_path(file.path) for file in changed)
        told = f"--output takes one file, but {len(changed)} would change: {names}"
        raise TorchoptError(f"{told} (--split-patches DIR leaves them alone, too)")
    if not rewritten.results:
        return
    file = changed[0] if changed else rewritten.results[0].files[0]
    existed = output.exists()
    write_all([replace(file.original, path=output, text=file.text, on_disk=None)])
    if not existed:
        shutil.copymode(file.path, output)


def _report(
    rewritten: Rewritten,
    errors: Sequence[TorchoptError],
    settings: Settings,
    written: bool,
    verified: tuple[VerifiedRewrite, ...] | None,
) -> None:
    from ..pipeline.report import FileReport, to_text
    from .diffs import print_diff

    for file in rewritten.files:
        for error in file.errors:
            print_error(TorchoptError(f"{error.transform}: {error.message}", error.path))
    reports = [FileReport.of(file) for file in rewritten.files]
    quiet = settings.dry_run or settings.format not in (None, Format.TEXT)
    if verified is not None:
        from .verified import tell

        tell(verified, sys.stderr if quiet else sys.stdout)
    if settings.format not in (None, Format.TEXT):
        reports += [FileReport.unreadable(error) for error in errors]
        sys.stdout.write(_told_to_a_program(settings.format, reports, verified))
        return
    if settings.dry_run:
        print_diff(rewritten.changed)
    stream = sys.stderr if settings.dry_run else sys.stdout
    if reports or not errors:
        trains = any(result.trains for result in rewritten.results)
        told = to_text(reports, written, painter(stream), trains=trains, output=settings.output)
        stream.write(told)


def _told_to_a_program(
    format: Format,
    reports: Sequence[FileReport],
    verified: tuple[VerifiedRewrite, ...] | None,
) -> str:
    if format is Format.SARIF:
        from ...transforms.registry import all_transforms
        from ..pipeline.sarif import to_sarif

        return to_sarif(reports, all_transforms())
    if format is Format.GITHUB:
        from ..pipeline.workflow_commands import to_workflow_commands

        return to_workflow_commands(reports)
    from ..pipeline.report import to_json

    return to_json(reports, verified)
