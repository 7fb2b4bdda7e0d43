"""The program between torchopt and a run: it watches what the run takes, and ends everything the run started.

A process of its own, so that it can be the *subreaper* of the run: a daemon that forks twice, leaves the session and
clears its environment becomes the supervisor's child and is found by that
(https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html). When torchopt itself dies, its end of the
control pipe closes and the supervisor ends the run.

Started as ``python -I -S supervisor.py SPEC COMMAND...``, so it may use the standard library only. Standard input is
the control pipe: a name of a bound, or its end, asks to end the run. The answer is written to the descriptor
``SPEC["answer"]``, one JSON object per line: ``{"started": pid}``, then :data:`Answer`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

GRACE_SECONDS = 2.0
"""Between asking processes to end and ending them."""
LAST_SECONDS = 20.0
"""How long to go on ending what does not end; a process that waits for a disk cannot be ended before that answers."""
LONGEST_LOOK = 0.25
"""Seconds between two looks at what the run takes."""
MEMORY_GROWTH = 8 << 30
"""Bytes per second: about what a machine's memory lets a program touch. Looks come so often that the run could not
go beyond its limit meanwhile, but not more often than each 20 ms."""
MEMORY_RESERVE = 256 << 20
"""Bytes that must stay available on the machine, whoever takes them: below that one without swap stands still."""
LOOK_SHARE = 0.02
"""Of one CPU: what looking may cost."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SHARED_MEMORY = "/dev/shm"


class OverLimit(Exception):
    """The run has to be ended; the arguments are the bound's name and, in one line, why."""


class ProcessTree:
    """The processes that descend from this one: on Linux all of them, elsewhere those in the ``group`` of the run."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._linux = os.path.exists("/proc/self/stat")

    def living(self) -> set[int]:
        """The descendants that are more than a zombie."""
        children: dict[int, list[int]] = {}
        dead: set[int] = set()
        for pid, parent, is_zombie in self._table():
            children.setdefault(parent, []).append(pid)
            if is_zombie:
                dead.add(pid)
        found: set[int] = set()
        waiting = [os.getpid()]
        while waiting:
            for child in children.get(waiting.pop(), ()):
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return found - dead

    def _table(self) -> Iterator[tuple[int, int, bool]]:
        if not self._linux:
            yield from self._table_of_ps()
            return
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with suppress(OSError):
                    # "pid (name) state parent ...", and the name may hold anything.
                    state, parent = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()[:2]
                    yield int(name), int(parent), state == b"Z"

    def _table_of_ps(self) -> Iterator[tuple[int, int, bool]]:
        command = ["ps", "-axo", "pid=,pgid=,stat="]
        for line in subprocess.run(command, capture_output=True, check=False).stdout.splitlines():
            pid, group, state = line.split()[:3]
            if int(group) == self._group:
                yield int(pid), os.getpid(), state.startswith(b"Z")

    def memory(self, pids: Iterable[int], limit: int) -> int:
        """What ``pids`` have taken, in bytes; exact when it is more than ``limit``, else it may be too much.

        Pages that forked workers share are counted once only by going through all of them, which takes a while.
        """
        if not self._linux:
            return self._memory_of_ps(set(pids))
        pids = list(pids)
        rough = sum(_sum(f"/proc/{pid}/status", _STATUS) for pid in pids)
        if rough <= limit:
            return rough
        return sum(_sum(f"/proc/{pid}/smaps_rollup", _ROLLUP) for pid in pids)

    def _memory_of_ps(self, pids: set[int]) -> int:
        command = ["ps", "-axo", "pid=,rss="]
        lines = subprocess.run(command, capture_output=True, check=False).stdout.splitlines()
        sizes = {int(pid): int(size) << 10 for pid, size in (line.split()[:2] for line in lines)}
        return sum(sizes.get(pid, 0) for pid in pids)


def _free_memory() -> int:
    """What the machine could give without swapping, in bytes; much where it does not tell."""
    return _sum("/proc/meminfo", (b"MemAvailable:",)) or sys.maxsize


_STATUS = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
_ROLLUP = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")


def _sum(path: str, names: tuple[bytes, ...]) -> int:
    """The sum of the lines of ``names`` in a file of /proc, in bytes; 0 when the process is gone."""
    try:
        lines = _read(path).splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(names))


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


class Disk:
    """What the run has written below ``folders``, looked at when the free space says that it may have become much."""

    def __init__(self, folders: list[str], limit: int) -> None:
        self._folders, self._limit = folders, limit
        self._free = self._free_bytes()
        # A file that is deleted and still written to shows in the free space only.
        self._reserve = min(1 << 30, self._free // 10)
        self._used, self._next = 0, 0.0

    def check(self, now: float) -> None:
        """Raise OverLimit when it is too much."""
        if not self._folders:
            return
        free = self._free_bytes()
        if free < self._reserve:
            raise OverLimit("disk", f"the disk is nearly full: {_size(free)} are left")
        if now < self._next and self._free - free < (self._limit - self._used) / 2:
            return
        self._free = free
        self._used = sum(_written(folder) for folder in self._folders)
        self._next = now + max(2.0, (time.monotonic() - now) / LOOK_SHARE)
        if self._used > self._limit:
            told = f"{_size(self._used)} written, {_size(self._limit)} allowed"
            raise OverLimit("disk", f"{told}; --disk-limit sets it")

    def _free_bytes(self) -> int:
        sizes = [os.statvfs(folder) for folder in self._folders]
        return min((size.f_bavail * size.f_frsize for size in sizes), default=sys.maxsize)


def _written(folder: str) -> int:
    """Bytes on the disk below ``folder``; what vanishes meanwhile counts nothing."""
    total = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    total += _written(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def _size(count: int) -> str:
    """A number of bytes for people: ``1.50 GiB``."""
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


class Supervisor:
    """Starts the run, watches it, ends all of it."""

    def __init__(self, spec: dict[str, Any], command: list[str]) -> None:
        self._spec = spec
        self._deadline = time.monotonic() + spec["seconds"]
        self._shared_memory = set(_entries(_SHARED_MEMORY))
        self._returncode: int | None = None
        self._woken, wake = _pipe()
        signal.signal(signal.SIGCHLD, _note)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._disk = Disk(spec["folders"], spec["disk"])
        # Kept, for subprocess would take the exit status of one that is no longer referred to.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **spec["environment"]},
            start_new_session=True,
            preexec_fn=_prepare_child,
        )
        self.pid = self._process.pid
        self._tree = ProcessTree(self.pid)
        self._living: set[int] = set()
        self._next_count = 0.0
        # From here only the run holds its output open.
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)

    def watch(self) -> dict[str, Any]:
        """Wait for the end of the run, or for a reason to end it; then end what is left of it. Gives the answer."""
        exceeded: OverLimit | None = None
        try:
            self._wait()
        except OverLimit as error:
            exceeded = error
        self._end_all(gently=exceeded is None or exceeded.args[0] == "time")
        bound, message = exceeded.args if exceeded else (None, None)
        return {"returncode": self._returncode, "bound": bound, "message": message}

    def _wait(self) -> None:
        look = time.monotonic()
        while True:
            self._reap()
            if self._returncode is not None:
                return
            now = time.monotonic()
            if now >= self._deadline:
                raise OverLimit("time", f"{self._spec['seconds']:g} s are over; --timeout sets it")
            if now >= look:
                look = now + self._look(now)
            until = min(look, self._deadline) - now
            ready, _, _ = select.select([0, self._woken], [], [], max(0.0, until))
            if self._woken in ready:
                os.read(self._woken, 1 << 16)
            if 0 in ready:
                said = os.read(0, 64).decode()
                raise OverLimit(said or "watch", "told to end")

    def _look(self, now: float) -> float:
        """Compare what the run takes with its limits; gives the seconds until the next look."""
        limit = self._spec["memory"]
        if now >= self._next_count:  # goes through all processes of the machine
            self._living = self._tree.living()
            self._next_count = now + max(LONGEST_LOOK, (time.monotonic() - now) / LOOK_SHARE)
        if len(self._living) > self._spec["processes"]:
            told = f"{len(self._living)} processes, {self._spec['processes']} allowed"
            raise OverLimit("processes", told)
        started = time.monotonic()
        memory = self._tree.memory(self._living, limit)
        if memory > limit:
            told = f"{_size(memory)} in use, {_size(limit)} allowed"
            raise OverLimit("memory", f"{told}; --memory-limit sets it")
        if (free := _free_memory()) < MEMORY_RESERVE:
            told = f"{_size(memory)} in use, and the machine has only {_size(free)} left"
            raise OverLimit("memory", told)
        cost = time.monotonic() - started
        self._disk.check(time.monotonic())
        pause = min(
            LONGEST_LOOK, max(0.02, min(limit - memory, free - MEMORY_RESERVE) / MEMORY_GROWTH)
        )
        return max(pause, cost / LOOK_SHARE)

    def _reap(self) -> None:
        """Take the exit status of every child that has ended, adopted ones as well."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.pid:
                    self._returncode = os.waitstatus_to_exitcode(status)

    def _end_all(self, *, gently: bool) -> None:
        """End every descendant: first asked, if ``gently``, then made to."""
        started = time.monotonic()
        living = self._tree.living()
        files = _shared_memory_of(living) if living else set[str]()
        if gently and living:
            _signal(self.pid, living, signal.SIGTERM)
        while living:
            elapsed = time.monotonic() - started
            if elapsed > LAST_SECONDS:
                break
            if not gently or elapsed > GRACE_SECONDS:
                _signal(self.pid, living, signal.SIGKILL)
            self._reap()
            living = self._tree.living()
            if living and gently:
                time.sleep(0.02)
        self._reap()
        for path in files - self._shared_memory:
            with suppress(OSError):
                os.unlink(path)


def _note(number: int, frame: object) -> None:
    """Handle a signal by its mere arrival, which the wakeup descriptor tells."""


def _signal(group: int, others: Iterable[int], number: signal.Signals) -> None:
    # The group first: it is reached in one go, so that nothing in it can fork meanwhile.
    with suppress(OSError):
        os.killpg(group, number)
    for pid in others:
        with suppress(OSError):
            os.kill(pid, number)


def _entries(folder: str) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(folder):
            yield os.path.join(folder, name)


def _shared_memory_of(pids: Iterable[int]) -> set[str]:
    """The files of shared memory that ``pids`` have mapped: killed, they cannot delete them."""
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            for line in _read(f"/proc/{pid}/maps").splitlines():
                path = os.fsdecode(line.partition(b"/")[2])
                if path.startswith("dev/shm/") and not path.endswith(" (deleted)"):
                    found.add("/" + path)
    return found


_LINUX = sys.platform.startswith("linux")


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def _prepare_child() -> None:
    """In the run's first process, before the user's interpreter starts in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash need not leave a file of many GB
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(
                "1000"
            )  # where the machine has no memory left after all, it is the run that goes


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Run the command that follows the JSON spec, and answer how it ended."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with open(spec["answer"], "w", encoding="utf-8") as answer:
        try:
            supervisor = Supervisor(spec, sys.argv[2:])
        except OSError as error:
            print(json.dumps({"unstartable": str(error)}), file=answer)
            return
        print(json.dumps({"started": supervisor.pid}), file=answer, flush=True)
        print(json.dumps(supervisor.watch()), file=answer, flush=True)


if __name__ == "__main__":
    main()
