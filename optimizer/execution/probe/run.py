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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from .allocation import keep_freed_memory
from .clock import Clock
from .cuda.install import emulate_cuda
from .cuda.state import NAME, Devices
from .devices import in_use, peak_memory
from .dropout_draws import draw_dropout_alike
from .dropping import Dropouts
from .entropy import Entropy
from .full_precision import compute_in_full_precision
from .functions import Functions
from .hooks import Hooks
from .loading import AlignedLoading
from .patches import Patches
from .profiler import Profiler
from .protection import EMULATED, Protection
from .randomness import derive, draw_on_host, seed_everything
from .resident import ResidentBatch
from .script import Ending, run_script
from .session import Session
from .turns import Turns
from .whole_batch import WeightedMeans, WholeBatch

Record = dict[str, Any]


def run(
    spec: Record, protection: Protection, started: float, write: Callable[[Record], None]
) -> NoReturn:
    """Run the script that ``spec`` describes and ``write`` the record; exits with the script's status."""
    patches = Patches()
    owner = os.getpid()
    once = threading.Lock()

    def finish(ending: Ending) -> None:
        if os.getpid() != owner:  # a forked child that came back here instead of exiting
            os._exit(0)
        if not once.acquire(blocking=False):  # a thread that gave up waiting for the script does it
            threading.Event().wait()
        hooks.shut_down_workers()
        patches.undo()
        profile = {} if profiler is None else {"profile": profiler.finish()}
        status = "stopped" if session.stopped else "failed" if ending.exit_code else "completed"
        record = {
            "status": status,
            "exit_code": None if session.stopped else ending.exit_code,
            "traceback": None if session.stopped else ending.traceback,
            **session.finish(),
            **(batch_layers.finish() if batch_layers is not None else {}),
            "memory": _memory(hooks.had_workers, profiler.device_peak if profiler else 0),
            **profile,
            "versions": _versions(emulated),
        }
        write(record)
        _flush(files=session.observing)

    def give_up() -> None:
        finish(Ending(None))
        os._exit(0)

    faulthandler.enable()  # a crash in native code then shows where the script was
    emulated = emulate_cuda(patches, spec["emulated_gpus"]) if spec["emulated_gpus"] else None
    if emulated is not None:
        # for the processes that the script starts
        os.environ[EMULATED] = str(spec["emulated_gpus"])
    profiler = Profiler(spec, patches) if spec["mode"] == "profile" else None
    turns = Turns(Path(spec["output"])) if spec["in_turns"] else None
    clock = (
        Clock(started, spec["block_steps"], spec["device_block_steps"], turns)
        if profiler is None
        else profiler.clock(started)
    )
    session = Session(spec, clock, give_up)
    hooks = Hooks(session, patches)
    if session.observing:
        session.printed.install(patches)
        session.told.install(patches, protection)
        _make_repeatable(spec["seed"], session, patches, protection)
    else:
        keep_freed_memory()
    # Not by a number that the script may choose itself: nobody would see that it no longer does.
    seed_everything(derive(spec["seed"], "start"))
    if profiler is not None:
        profiler.install()
    if spec["resident_batch"]:
        ResidentBatch(patches).install()
    hooks.install()
    if spec["full_precision"]:  # after the hooks, which tell the types computed in
        compute_in_full_precision(patches)
    batch_layers = BatchLayers(spec["batch_layers"], patches) if spec["batch_layers"] else None
    ending = run_script(spec["entry"], spec["program"], spec["args"], spec["module"])
    finish(ending)
    if session.stopped:  # exit handlers and threads of a script cut short have nothing to wait for
        os._exit(0)
    if ending.traceback is not None:
        print(ending.traceback, end="", file=sys.stderr)
    sys.exit(ending.exit_code)


class BatchLayers:
    """What hangs on a whole batch or on draws for it: noted, and made alike in one process and several with ``align``."""

    def __init__(self, how: str, patches: Patches) -> None:
        functions = Functions(patches)
        whole = WholeBatch() if how == "align" else None
        if whole is not None:
            whole.install(patches, functions)
        self._dropouts = Dropouts(off=whole is not None)
        self._dropouts.install(patches, functions)
        self._means = WeightedMeans(whole)
        self._means.install(functions)

    def finish(self) -> Record:
        """What the record says of them."""
        return {**self._dropouts.finish(), **self._means.finish()}


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
    if torch.cuda.is_available():
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
        kinds = (io.TextIOWrapper, io.BufferedWriter)
        found += [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]
    for stream in found:
        with suppress(OSError, ValueError):  # closed by the script
            stream.flush()
