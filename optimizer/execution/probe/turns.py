"""This run's side of taking turns with other runs (:mod:`optimizer.execution.turn_taking`): it rests between two turns."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

RESTING, GO = "resting", "go"
"""Named pipes in the folder of the run: it tells that it rests, and is told to go on."""
TURN, ALONE = b"t", b"a"
"""How it is told: for one more turn, or to its end, as there is nobody left to take turns with."""
_SPARE_DEVICE_BYTES = 1 << 30
"""For the libraries that another process sets up on a device, which PyTorch does not count."""


class Turns:
    """Rests of this run. ``taken`` are the turns it was told to take beside others."""

    def __init__(self, folder: Path) -> None:
        self._tell = os.open(folder / RESTING, os.O_WRONLY)
        self._ask = os.open(folder / GO, os.O_RDONLY)
        self._alone = False
        self._rests = 0
        self.taken = 0

    def rest(self) -> float:
        """Let other runs have the machine until this one is told to go on; how many seconds that took."""
        if self._alone:
            return 0.0
        began = time.perf_counter()
        _signal_workers(signal.SIGSTOP)
        told = _needs() if self._rests == 0 else {}
        self._rests += 1
        os.write(self._tell, json.dumps(told).encode() + b"\n")
        if os.read(self._ask, 1) == TURN:
            self.taken += 1
        else:
            self._alone = True
        _wake_group()
        return time.perf_counter() - began


def _signal_workers(number: signal.Signals) -> None:
    """Stop the loading workers at once: whoever stops this process comes a little later, and they would work ahead."""
    for worker in multiprocessing.active_children():
        if worker.pid is not None:
            with suppress(OSError):
                os.kill(worker.pid, number)


def _wake_group() -> None:
    """Let the other processes of the run go on, now that this one has a core again and its time counts."""
    _signal_workers(signal.SIGCONT)
    if os.getpgrp() == os.getpid():
        with suppress(OSError):
            os.killpg(os.getpgrp(), signal.SIGCONT)


def _needs() -> dict[str, Any]:
    """What has to be known to let another run come beside this one.

    ``group`` is the process group that holds this run and nothing else, None when there is no such group; ``host`` its
    peak of memory in bytes; ``device_room`` whether the GPUs it uses have twice of what it takes there left.
    """
    group = os.getpgrp() if os.getpgrp() == os.getpid() else None
    return {"group": group, "host": _host_peak(), "device_room": _device_room()}


def _host_peak() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _device_room() -> bool:
    import torch  # not above: torchopt itself, which hands out the turns, does without

    if not torch.cuda.is_initialized():
        return True
    for number in range(torch.cuda.device_count()):
        try:
            taken = torch.cuda.max_memory_reserved(number)
        except RuntimeError:  # an allocator of the script's own that keeps no statistics
            return False
        if taken and torch.cuda.mem_get_info(number)[0] < 2 * taken + _SPARE_DEVICE_BYTES:
            return False
    return True
