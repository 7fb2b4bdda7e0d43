"""How much of the machine a run may take: time, memory, disk, processes, output."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

OUTPUT_BYTES = 4 << 30
"""Of stdout and stderr each. Reading costs next to nothing and only the beginning is kept, so this is to end a print
loop before the time limit does."""
FEWEST_PROCESSES = 1024
PROCESSES_PER_CPU = 16
"""Loader workers and compile workers are made per CPU; a few of each for every training process stay below this."""
MEMORY_SHARE = 0.9
"""Of the machine's memory, or of our control group's limit, so that the same script is within it every time."""
DISK_SHARE = 0.5
"""Of the disk space that is free when a run begins."""


class Bound(str, Enum):
    """What ended a run from outside."""

    TIME = "time"
    MEMORY = "memory"
    DISK = "disk"
    PROCESSES = "processes"
    OUTPUT = "output"
    WATCH = "watch"
    """The run ended the process that watches it."""


@dataclass(frozen=True)
class Exceeded:
    """The bound that ended a run, and in one line by how much it was exceeded."""

    bound: Bound
    message: str

    def __str__(self) -> str:
        over = "" if self.bound is Bound.WATCH else f"over the {self.bound.value} limit: "
        return f"{over}{self.message}"


@dataclass(frozen=True)
class Limits:
    """Upper bounds of one run, over all its processes together: seconds, bytes, processes, bytes per output stream.

    ``memory`` counts what cannot be dropped: anonymous and shared pages and swap, a page shared by several processes
    once, but not files that are mapped or cached. ``disk`` counts what the run has written.
    """

    seconds: float = 600.0
    memory: int = sys.maxsize
    disk: int = sys.maxsize
    processes: int = FEWEST_PROCESSES
    output: int = OUTPUT_BYTES


def default_memory_limit() -> int:
    """:data:`MEMORY_SHARE` of what the machine has and our control groups allow, in bytes; no limit where unknown."""
    sizes = [*_memory_of_machine(), *_memory_of_control_groups()]
    return int(MEMORY_SHARE * min(sizes)) if sizes else sys.maxsize


def available_memory() -> int:
    """What the machine could give now without swapping, in bytes; much where it does not tell."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return sys.maxsize


def default_disk_limit() -> int:
    """:data:`DISK_SHARE` of the space left where runs keep their scratch files, in bytes."""
    return int(DISK_SHARE * shutil.disk_usage(tempfile.gettempdir()).free)


def default_process_limit() -> int:
    """See :data:`PROCESSES_PER_CPU`."""
    return max(FEWEST_PROCESSES, PROCESSES_PER_CPU * (os.cpu_count() or 1))


def _memory_of_machine() -> Iterator[int]:
    with suppress(ValueError, OSError):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _memory_of_control_groups() -> Iterator[int]:
    """The limits of our control group and of the groups around it.

    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files, and ``memory.limit_in_bytes`` before.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = Path("/sys/fs/cgroup"), "memory.max"
        elif "memory" in controllers.split(","):
            root, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the one outside of it; the container's own group is then the root.
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # no such group, or "max"
                yield int((folder / name).read_text())
            if folder == root:
                break
