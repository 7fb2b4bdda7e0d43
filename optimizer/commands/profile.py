"""``torchopt profile``: where a training step's time goes, and which transforms could win it back."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..config import Format, Settings, load_settings
from ..environment import find_python
from ..errors import ExitCode, TorchoptError
from ..failure_hints import input_hint
from ..terminal import print_error, progress_bar
from .flags import (
    Action,
    Amp,
    CompileModeName,
    Gpus,
    Ignore,
    PlainFormatName,
    Processes,
    Python,
    Seed,
    Select,
    TargetName,
    TierName,
    Timeout,
    Torch,
    refuse_formats_of_rewrite,
)

_WIDTH_OF_A_FILE = 120


def profile(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script.")],
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="N", help="Optimizer steps to run (default: 50)."),
    ] = None,
    seed: Seed = None,
    timeout: Timeout = None,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="Write the last steps as a Chrome trace."),
    ] = None,
    nvtx: Annotated[
        bool | None,
        typer.Option("--nvtx/--no-nvtx", help="Mark the phases with NVTX ranges, for Nsight."),
    ] = None,
    format: PlainFormatName = None,
    python: Python = None,
    tier: TierName = None,
    select: Select = None,
    ignore: Ignore = None,
    target: TargetName = None,
    gpus: Gpus = None,
    torch: Torch = None,
    amp: Amp = None,
    compile_mode: CompileModeName = None,
    nproc_per_node: Processes = None,
) -> Action:
    """Measure where a training step's time goes.

    Names the bottleneck, and the transforms that address it with what they could save at most.
    The script is run in a scratch copy of the project: no file of yours is touched. What follows -- is passed to it.
    """
    said = dict(steps=steps, seed=seed, timeout=timeout, trace=trace, nvtx=nvtx)
    said |= dict(format=format, python=python, tier=tier, select=select, ignore=ignore)
    said |= dict(target=target, gpus=gpus, torch=torch, amp=amp)
    said |= dict(compile_mode=compile_mode, nproc_per_node=nproc_per_node)
    flags = Settings.from_flags(said)
    refuse_formats_of_rewrite(flags)
    return lambda arguments: _profile(Path(script).absolute(), flags, arguments)


def _profile(script: Path, flags: Settings, arguments: tuple[str, ...]) -> int:
    from ...transforms.registry import all_transforms
    from ..execution.script_versions import original_version
    from ..pipeline.rewrite import rewrite_all
    from ..profiling import document, report
    from ..profiling.opportunities import opportunities
    from ..profiling.profile import ProfileSettings, ScriptFailed
    from ..profiling.profile import profile as measure

    settings = flags.over(load_settings(script.parent))
    options = settings.options_in(script.parent)
    rewritten = rewrite_all([script], all_transforms(), lambda _: options)
    if not rewritten.results:
        raise rewritten.errors[0]
    defaults = ProfileSettings(find_python(settings.python), Path.cwd())
    wanted = ProfileSettings(
        python=defaults.python,
        cwd=defaults.cwd,
        steps=settings.steps or defaults.steps,
        seed=defaults.seed if settings.seed is None else settings.seed,
        timeout_s=settings.timeout or defaults.timeout_s,
        trace=settings.trace,
        nvtx=bool(settings.nvtx),
    )
    version = original_version(script, arguments, settings.nproc_per_node)
    try:
        with progress_bar() as show:
            found = measure(version, wanted, show)
    except ScriptFailed as failed:
        print(failed.details, file=sys.stderr)
        code = ExitCode.SCRIPT_FAILED
        told = f"fails by itself{input_hint(failed.details, script)}"
        raise TorchoptError(told, script, exit_code=code) from None
    changes = [change for file in rewritten.files for change in file.changes]
    could = opportunities(found, changes, all_transforms(), options.target)
    for error in rewritten.errors:
        print_error(error)
    if settings.format is Format.JSON:
        json.dump(document.to_json(script, arguments, found, could), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        from rich.console import Console

        width = None if sys.stdout.isatty() else _WIDTH_OF_A_FILE
        here = f"{Path.cwd()}{os.sep}"
        report.render_text(found, could, Console(file=sys.stdout, width=width), paths=here)
    return ExitCode.OK
