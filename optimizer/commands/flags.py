"""The flags several commands share. All default to None, "not said", so that a configuration can speak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

import typer

from ..config import Format, Settings
from ..errors import TorchoptError

Action: TypeAlias = Callable[[tuple[str, ...]], int]
"""A parsed command: takes the script's own arguments (those behind ``--``), gives the exit status."""

Select: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="NAMES", help="Only these transforms (comma-separated)."),
]
Ignore: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="NAMES", help="Not these transforms (comma-separated)."),
]
TierName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tier",
        metavar="exact|numeric|semantic",
        help="How far numbers may change: not at all, by rounding (default), or training itself.",
    ),
]
TargetName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="cuda|cpu|auto",
        help="The device the script is meant to run on (default: auto, by what it says).",
    ),
]
Gpus: TypeAlias = Annotated[
    str | None, typer.Option("--gpus", metavar="N", help="How many GPUs to train on.")
]
Accumulate: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--accumulate",
        metavar="N",
        help="Make each training step of N smaller batches, to fit memory.",
    ),
]
Workers: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Give loaders without workers N, or none (default: by the CPU cores at run time).",
    ),
]
Prefetch: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--prefetch",
        metavar="N",
        help="Let each worker make N batches ahead (default: PyTorch's, 2).",
    ),
]
Profile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="What `torchopt profile --format json` wrote: choose the workers by it.",
    ),
]
SyncBatchNorm: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--sync-batchnorm/--no-sync-batchnorm",
        help="On several GPUs, BatchNorm normalizes by the whole batch.",
    ),
]
Torch: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--torch",
        metavar="VERSION",
        help="Write for this torch (default: the interpreter's, else the project's requirement).",
    ),
]
Amp: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--amp",
        metavar="auto|bf16|fp16",
        help="The half-precision type for autocast (default: auto, by the GPU at run time).",
    ),
]
CompileModeName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--compile-mode",
        metavar="auto|default|reduce-overhead|max-autotune|max-autotune-no-cudagraphs",
        help="How networks are compiled (default: auto, without a mode).",
    ),
]
FormatName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="text|json|github|sarif",
        help="How to report: github annotates a pull request, sarif is for code scanning (default: text).",
    ),
]
PlainFormatName: TypeAlias = Annotated[
    str | None,
    typer.Option("--format", metavar="text|json", help="How to report (default: text)."),
]
Jobs: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "-j",
        "--jobs",
        metavar="N",
        help="Rewrite in N processes (default: 1).",
    ),
]
Processes: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--nproc-per-node",
        metavar="N",
        help="Where torchrun starts the script, or its rewrite, that is as N processes.",
    ),
]
Python: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PROGRAM",
        help="The interpreter that runs the script (default: the active environment's).",
    ),
]
Attribute: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--attribute/--no-attribute",
        help="Also measure what each transform buys, added one by one (many more timed runs).",
    ),
]
EmulateCuda: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--emulate-cuda/--no-emulate-cuda",
        help="Run on a CUDA device emulated on the CPU, strict as a real one; no speed is told.",
    ),
]
Steps: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--steps",
        metavar="N",
        help="Optimizer steps to compare (default: 20, and on past the end of the first epoch, or of the script, where that takes seconds).",
    ),
]
Seed: TypeAlias = Annotated[
    str | None, typer.Option("--seed", metavar="N", help="Seed of the runs (default: 0).")
]
Timeout: TypeAlias = Annotated[
    str | None,
    typer.Option("--timeout", metavar="SECONDS", help="Limit of each run (default: 600)."),
]
Paths: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="PATH", help="Scripts, or folders to search for them.")
]


def refuse_formats_of_rewrite(flags: Settings) -> None:
    """Raise TorchoptError where a command that runs scripts is told to report as only ``rewrite`` does."""
    for unfit in (Format.GITHUB, Format.SARIF):
        if flags.format is unfit:
            raise TorchoptError(f"--format: only rewrite reports as {unfit.value}")
