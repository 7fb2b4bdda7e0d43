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
"""Of the memory that is free when a verification begins: the rest is for torchopt and for the time between two looks."""
DISK_SHARE = 0.5
"""Of the free disk space when a verification begins."""


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
    once; not files that are mapped or cached. ``disk`` counts what the run has written.
    """

    seconds: float = 600.0
    memory: int = sys.maxsize
    disk: int = sys.maxsize
    processes: int = FEWEST_PROCESSES
    output: int = OUTPUT_BYTES


def default_memory_limit() -> int:
    """:data:`MEMORY_SHARE` of the memory that this process could still get, in bytes; no limit where unknown."""
    free = [free for free in (_free_memory(), *_free_in_control_groups()) if free is not None]
    return int(MEMORY_SHARE * min(free)) if free else sys.maxsize


def default_disk_limit() -> int:
    """:data:`DISK_SHARE` of the space left where runs keep their scratch files, in bytes."""
    return int(DISK_SHARE * shutil.disk_usage(tempfile.gettempdir()).free)


def default_process_limit() -> int:
    return max(FEWEST_PROCESSES, PROCESSES_PER_CPU * (os.cpu_count() or 1))


def _free_memory() -> int | None:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) << 10
    with suppress(ValueError, OSError):  # macOS tells only how much there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _free_in_control_groups() -> Iterator[int]:
    """What the limits of our control group, and of the groups around it, leave.

    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files; page cache counts as used there and can
    be dropped, so it is added back.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = root / path.lstrip("/")
        # In a container the path may be that outside of it; the container's own group is then the root.
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):
                most, used = (int((folder / name).read_text()) for name in names)
                yield max(0, most - used + _cached(folder / "memory.stat"))
            if folder == root:
                break


def _cached(stat: Path) -> int:
    """The pages of files that the kernel drops first."""
    with suppress(OSError):
        for line in stat.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0
