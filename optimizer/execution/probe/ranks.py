"""Processes that the script starts by itself to train together: each is observed once it joins a process group.

Whatever starts them (``torch.multiprocessing.spawn``, ``Process``, a program), they are told of the run by their environment, or are
forked from a process that knows it. From joining on, such a process records what torchrun's ranks do, in a folder of its rank
below that of the run. It ends at once when the run is over, and the script's own process with the last of them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import json
import multiprocessing.util
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from .elsewhere import tell_steps
from .patches import Patches
from .protection import RUN, Protection
from .randomness import seed_start
from .script import ending_of
from .start import RECORD, UNOBSERVED, become, write_record

if TYPE_CHECKING:
    from .cuda.state import Devices
    from .session import Session

STOPPED = "stopped"
"""A file in the folder of a rank whose run was over before its code."""
_PATIENCE_SECONDS = 30.0
"""How long other ranks may take to the end of their runs, as the script's own process may."""
_NAMES = (
    "torch.distributed.distributed_c10d",
    "torch.distributed",
    "torch.distributed.device_mesh",
)
"""Modules that have ``init_process_group`` under its own name."""


class RankObserver:
    """In the script's own process, whose ``session`` ends with the ranks'; ``patches`` are all that it has installed."""

    def __init__(self, spec_file: str, session: Session, patches: Patches) -> None:
        self._spec_file, self._session, self._patches = spec_file, session, patches
        self._owner = os.getpid()

    def install(self, protection: Protection) -> None:
        """Have every process observed that the script starts and that joins a process group."""
        os.environ[RUN] = self._spec_file
        self._patches.wrap(BaseProcess, "join", self._join)
        _after_joining(self._patches, functools.partial(self._joined, protection))

    def _joined(self, protection: Protection) -> None:
        if os.getpid() != self._owner:
            self._patches.undo()  # of the process that this one was forked from
            _observe(_read(self._spec_file), protection, None)

    def _join(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def join(process, *args, **kwargs):
            original(process, *args, **kwargs)
            if os.getpid() == self._owner and process.exitcode is not None:
                self._end_with_ranks()

        return join

    def _end_with_ranks(self) -> None:
        folders = list(self._session.folder.glob("rank*"))
        if not any((folder / STOPPED).exists() for folder in folders):
            return
        until = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < until and not all((f / RECORD).exists() for f in folders):
            time.sleep(0.02)
        self._session.stopped = True
        self._session.check()


def expect_joining(protection: Protection, emulated: Devices | None) -> None:
    """In a process that the script has started anew: observe it if it joins a process group."""
    spec = _read(os.environ[RUN])
    seed_start(spec["seed"])
    patches = Patches()
    tell_steps(patches, Path(spec["output"]))

    def joined() -> None:
        patches.undo()
        _observe(spec, protection, emulated)

    _after_joining(patches, joined)


def _after_joining(patches: Patches, action: Callable[[], None]) -> None:
    """Call ``action`` after each ``init_process_group``."""

    def telling(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_process_group(*args, **kwargs):
            original(*args, **kwargs)
            action()

        return init_process_group

    for name in _NAMES:
        module: ModuleType | None = sys.modules.get(name)
        if hasattr(module, "init_process_group"):
            patches.wrap(module, "init_process_group", telling)


def _read(spec_file: str) -> dict[str, Any]:
    return json.loads(Path(spec_file).read_text(encoding="utf-8"))


def _observe(spec: dict[str, Any], protection: Protection, emulated: Devices | None) -> None:
    """Observe this process from here as the rank it has."""
    from .run import ObservedProcess

    rank = torch.distributed.get_rank()
    folder = Path(spec["output"]) / f"rank{rank}"
    if folder.exists():
        (folder / UNOBSERVED).touch()
        return
    become(spec, rank)
    started = time.perf_counter() - (time.time() - spec["started_at"])

    def write(record: dict[str, Any]) -> None:
        write_record(spec, record)
        if record["status"] == "stopped":
            (folder / STOPPED).touch()

    observed = ObservedProcess(spec, protection, started, write, rank=True, emulated=emulated)

    def finish() -> None:
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        if isinstance(error, SystemExit) and error.code:
            # torch.multiprocessing.spawn hands the error on to whoever started the process, and exits.
            error = error.__context__ or error
        observed.finish(ending_of(error))

    # It runs while what ended the process is handled, and before exit handlers.
    multiprocessing.util.Finalize(None, finish, exitpriority=100)
