"""A run from the first seed to the record."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import faulthandler
import gc
import io
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from .allocation import keep_freed_memory
from .clock import Clock
from .cuda.install import emulate_cuda
from .cuda.state import NAME, Devices
from .devices import in_use, may_be_used, peak_memory
from .dropout_draws import draw_dropout_alike
from .dropping import Dropouts
from .entropy import Entropy
from .full_precision import compute_in_full_precision, keep_in_float32
from .functions import Functions
from .hooks import Hooks
from .loading import AlignedLoading
from .names import alive
from .patches import Patches
from .profiler import Profiler
from .protection import EMULATED, Protection
from .randomness import draw_on_host, seed_start
from .ranks import RankObserver
from .resident import ResidentBatch
from .script import Ending, run_script
from .session import Session
from .shared_draws import SharedDraws
from .terminal_size import tell_a_size
from .turns import Turns
from .whole_batch import WeightedMeans, WholeBatch

Record = dict[str, Any]


def run(
    spec: Record, protection: Protection, started: float, write: Callable[[Record], None]
) -> NoReturn:
    """Run the script that ``spec`` describes and ``write`` the record; exits with the script's status."""
    observed = ObservedProcess(spec, protection, started, write)
    if not spec["processes"]:
        observed.look_for_ranks(protection)
    protection.importer.more_digits = spec["more_digits"]
    if observed.session.observing:
        gc.freeze()  # what the script makes is looked for among what is alive, and nothing of it is yet
    ending = run_script(
        spec["entry"],
        spec["program"],
        spec["args"],
        spec["module"],
        more_digits=spec["more_digits"],
    )
    observed.finish(ending)
    if observed.session.stopped:
        os._exit(0)  # exit handlers and threads of a script cut short have nothing to wait for
    if ending.traceback is not None:
        print(ending.traceback, end="", file=sys.stderr)
    sys.exit(ending.exit_code)


class ObservedProcess:
    """This process under the hooks that ``spec`` asks for, from their installation to the record, which is given to ``write``.

    The end of the run unwinds the script's code; a ``rank`` of a process group ends at once, since whoever started it would take that
    for a failure. With ``emulated`` the devices are emulated already.
    """

    def __init__(
        self,
        spec: Record,
        protection: Protection,
        started: float,
        write: Callable[[Record], None],
        *,
        rank: bool = False,
        emulated: Devices | None = None,
    ) -> None:
        self._write, self._owner, self._once = write, os.getpid(), threading.Lock()
        self._spec, self._patches = spec, Patches()
        faulthandler.enable()  # a crash in native code then shows where the script was
        self._emulated = emulated
        if spec["emulated_gpus"] and emulated is None:
            self._emulated = emulate_cuda(self._patches, spec["emulated_gpus"])
            # for the processes that the script starts
            os.environ[EMULATED] = str(spec["emulated_gpus"])
        self._profiler = Profiler(spec, self._patches) if spec["mode"] == "profile" else None
        turns = Turns(Path(spec["output"])) if spec["in_turns"] and not rank else None
        clock = (
            Clock(started, spec["block_steps"], spec["device_block_steps"], turns)
            if self._profiler is None
            else self._profiler.clock(started)
        )
        self.session = Session(spec, clock, self._give_up, unwinds=not rank)
        self._hooks = Hooks(self.session, self._patches)
        if not rank:  # which was seeded when it began
            seed_start(spec["seed"])
        self._install(protection)

    def _install(self, protection: Protection) -> None:
        spec, session, patches = self._spec, self.session, self._patches
        tell_a_size(patches)
        if session.observing:
            session.printed.install(patches)
            session.told.install(patches, protection)
            _make_repeatable(spec["seed"], session, patches, protection)
        else:
            keep_freed_memory()
        if self._profiler is not None:
            self._profiler.install()
        if spec["resident_batch"]:
            ResidentBatch(patches).install()
        self._hooks.install()
        if spec["full_precision"]:  # after the hooks, which tell the types computed in
            compute_in_full_precision(patches)
        if spec["full_precision"] or spec["unrounded"]:
            keep_in_float32(patches, session.rounds, rounded=not spec["unrounded"])
        functions, how = Functions(patches), spec["batch_layers"]
        self._dropouts = Dropouts(
            session.notes_layers, off=spec["without_dropout"] or how == "align"
        )
        if session.observing:
            self._dropouts.install(patches, functions)
        self._batch_layers = None
        if how:
            draws = SharedDraws(session.reading, spec["seed"], align=how == "align")
            self._batch_layers = BatchLayers(how, draws, patches, functions)

    def look_for_ranks(self, protection: Protection) -> None:
        """Have the processes observed, too, that the script starts to train together."""
        RankObserver(sys.argv[1], self.session, self._patches).install(protection)

    def finish(self, ending: Ending) -> None:
        """The script has ended, or its run has: write the record."""
        ended_at = time.monotonic()
        if os.getpid() != self._owner:  # a forked child that came back here instead of exiting
            os._exit(0)
        if not self._once.acquire(blocking=False):
            # A thread that gave up waiting for the script does it.
            threading.Event().wait()
        self._hooks.shut_down_workers()
        self._patches.undo()
        profiler, stopped = self._profiler, self.session.stopped
        status = "stopped" if stopped else "failed" if ending.exit_code else "completed"
        profile = {} if profiler is None else {"profile": profiler.finish()}
        record = {
            "status": status,
            "exit_code": None if stopped else ending.exit_code,
            "traceback": None if stopped else ending.traceback,
            "ended_at": ended_at,
            **self.session.finish(),
            **(self._dropouts.finish() if self.session.observing else {}),
            **(self._batch_layers.finish() if self._batch_layers is not None else {}),
            "memory": _memory(self._hooks.had_workers, profiler.device_peak if profiler else 0),
            **profile,
            "versions": _versions(self._emulated),
        }
        self._write(record)
        _flush(files=self.session.observing)

    def _give_up(self) -> None:
        self.finish(Ending(None))
        os._exit(0)


class BatchLayers:
    """What hangs on a whole batch: noted, and made alike in one process and several with ``align``."""

    def __init__(
        self, how: str, draws: SharedDraws, patches: Patches, functions: Functions
    ) -> None:
        self._draws = draws
        draws.install(patches, functions)
        whole = WholeBatch() if how == "align" else None
        if whole is not None:
            whole.install(patches, functions)
        self._means = WeightedMeans(whole)
        self._means.install(functions)

    def finish(self) -> Record:
        """What the record says of them."""
        return {**self._means.finish(), **self._draws.finish()}


def _make_repeatable(seed: int, session: Session, patches: Patches, protection: Protection) -> None:
    """Have the run depend on ``seed`` and the script only."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    # Whatever the script says: chosen by their times, algorithms differ from run to run.
    patches.wrap(vars(type(torch.backends.cudnn))["benchmark"], "setter", _without_effect)
    AlignedLoading(seed, session.folder).install(patches)
    session.evaluation_draws.install(patches, protection)
    Entropy(seed).install(patches, protection)
    draw_dropout_alike(patches)
    if may_be_used():
        draw_on_host(patches)

    def fall_back(config: Any) -> None:
        config.fallback_random = True  # compiled dropout draws what eager dropout draws

    protection.importer.after_import("torch._inductor.config", fall_back)


def _without_effect(setter: Callable[[bool], None]) -> Callable[[bool], None]:
    def ignore(value: bool) -> None:
        """Leave the setting as it is."""

    return ignore


def _memory(had_workers: bool, device_peak: int) -> dict[str, int | None]:
    """The fields of a ``Memory``; ``device_peak`` is one from before the devices' peak was last reset."""
    device = peak_memory()
    if device is not None:
        device = max(device, device_peak)
    try:
        import resource
    except ImportError:
        return {"device": device, "host": None, "worker": None}
    unit = 1 if sys.platform == "darwin" else 1024
    own, children = (
        resource.getrusage(who).ru_maxrss * unit
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {"device": device, "host": own, "worker": children if had_workers else None}


def _versions(emulated: Devices | None) -> dict[str, Any]:
    """The fields of a ``Versions``."""
    used = in_use()
    device = torch.cuda.get_device_name() if used else "cpu"
    if emulated is not None and emulated.used:
        device = NAME
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device,
        "gpus": torch.cuda.device_count() if used else 0,
    }


def _flush(*, files: bool) -> None:
    """Write out what was printed, and what the script wrote to ``files`` that it has not closed: its end may be near."""
    found = [sys.stdout, sys.stderr]
    if files:
        found += alive(io.TextIOWrapper, io.BufferedWriter)
    for stream in found:
        with suppress(OSError, ValueError):  # closed by the script
            stream.flush()
