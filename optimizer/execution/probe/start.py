"""The program of a run: reads SPEC.json, runs the script under the hooks, writes ``record.json``."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .protection import protect

OLDEST_PYTHON, OLDEST_TORCH, OLDEST_EMULATING_TORCH = (3, 10), (2, 4), (2, 6)
RECORD = "record.json"
"""File name of the scalars, in the run's output folder."""
UNOBSERVED = "unobserved"
"""A file in the folder of a rank, once another process has become the same rank, which goes unobserved."""
STEPPED = "stepped-elsewhere"
"""A file in the folder of a run, once an optimizer has stepped in a process that the script has started and that is no rank."""
UNFIT = "unfit"
"""In the record instead of everything else: why this interpreter cannot run the probe."""


def main() -> None:
    """Run what ``sys.argv[1]`` describes; exits with the script's status."""
    spec: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _become_rank(spec)
    started = time.perf_counter() - (time.time() - spec["started_at"])
    protection = protect()
    why = unfit(emulates=bool(spec["emulated_gpus"]))
    if why is not None:
        write_record(spec, {UNFIT: why})
        sys.exit(1)
    from . import run

    run.run(spec, protection, started, write=lambda record: write_record(spec, record))


def _become_rank(spec: dict[str, Any]) -> None:
    """Under torchrun: be the rank it says."""
    rank = os.environ.get("RANK")
    if spec["processes"] and rank is not None:
        become(spec, int(rank))


def become(spec: dict[str, Any], rank: int) -> None:
    """Write the record to a folder of this ``rank``, and the output of all but rank 0 to a file there."""
    folder = Path(spec["output"]) / f"rank{rank}"
    folder.mkdir(exist_ok=True)
    spec["output"] = str(folder)
    # Whether there is time to go on, each rank would decide by a clock of its own.
    spec["epoch_seconds"] = 0.0
    if rank:
        sys.stdout.flush()
        with (folder / "stdout").open("wb") as file:
            os.dup2(file.fileno(), 1)


def unfit(*, emulates: bool) -> str | None:
    """Why this interpreter cannot run the probe, or not on a device that it ``emulates``; None when it can."""
    if sys.version_info < OLDEST_PYTHON:
        return "Python {}.{} is too old, 3.10 is needed".format(*sys.version_info[:2])
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    oldest, purpose = OLDEST_TORCH, ""
    if emulates:
        oldest, purpose = OLDEST_EMULATING_TORCH, " to emulate a CUDA device"
    if version >= oldest:
        return None
    needed = ".".join(map(str, oldest))
    return f"torch {torch.__version__} is too old{purpose}, {needed} is needed"


def write_record(spec: dict[str, Any], record: dict[str, Any]) -> None:
    """Write the record whole or not at all, with the user's own paths for those of the mirror."""
    text = json.dumps(record)
    for ours, shown in spec["shown_paths"]:
        text = text.replace(json.dumps(ours)[1:-1], shown)
    path = Path(spec["output"]) / RECORD
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
