"""Runs that take turns: all are in memory at the same time, and one of them computes at a time.

A machine that others use, too, changes its pace from second to second, by more than what there is to be measured. Runs
made one after the other see different machines. Runs that hand the machine to and fro many times a second see the same one.

A run rests at the edges of its blocks of rounds (:class:`.probe.clock.Clock`), where it waits for the device anyhow. While it
rests all of its processes are stopped, its loading workers as well, so that they do not work ahead. The time it rests counts nowhere. Two
runs go there and back, A B B A A B ..., so that a machine that slows down steadily does so for both. Of more, the first and the last would
alone find their own data in the processor's caches in half of their turns: they go in another order in every round, drawn at random, in which
nobody takes two turns in a row.

The first run comes to rest after its first round, then the next is started, so that nothing disturbs a start or a compilation. Where
memory does not suffice for two, the runs are made one after the other. Who asks for nothing but the steps may have all of them
start at the same time, which memory must suffice for.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .limits import available_memory, default_memory_limit
from .observations import ENDED_WELL, Observations
from .probe.turns import ALONE, GO, RESTING, TURN
from .runner import RunSettings, ScriptVersion

Runner = Callable[[ScriptVersion, RunSettings, Path], Observations]


@dataclass(frozen=True)
class Start:
    """A run to be made: of which version, how, and where its files go (see :func:`.runner.run`)."""

    version: ScriptVersion
    settings: RunSettings
    folder: Path


def run_in_turns(
    starts: Sequence[Start], run: Runner, *, start_together: bool = False
) -> list[Observations]:
    """Make the runs by turns, the first of ``starts`` first; ``run`` makes one.

    ``Timing.turns`` says how many turns each took beside others; 0 where they ran one after the other. One that fails
    beside others is made once more by itself: it may have lacked the memory that those had.
    """
    if len(starts) < 2 or any(start.version.processes for start in starts):
        return [run(start.version, start.settings, start.folder) for start in starts]
    runs = [_Run(start, run, len(starts)) for start in starts]
    try:
        _take_turns(runs, together=start_together)
    except BaseException:
        for one in runs:
            one.end()
        raise
    finally:
        for one in runs:
            one.close()
    return [one.observations() for one in runs]


def _take_turns(runs: Sequence[_Run], *, together: bool) -> None:
    resting: list[_Run] = []
    for one in runs if together else ():
        one.beside_others = True
        one.start()
    for one in runs:
        if not together:
            if resting and not _room(resting):
                _to_their_ends(resting)
                resting = []
            one.start()
        if one.rests():
            one.freeze()
            resting.append(one)
    _to_their_ends(resting)


def _to_their_ends(resting: list[_Run]) -> None:
    """Let those that rest take turns until one is left, and that go to its end."""
    for one in resting:
        one.beside_others = len(resting) > 1
    running: _Run | None = None
    draws = random.Random(0)
    while len(resting) > 1:
        for one in list(resting):
            if running is not None and running is not one and running in resting:
                running.freeze()
            running = one
            if not one.takes_turn():
                resting.remove(one)
        _reorder(resting, draws)
    for one in resting:
        one.finish()


def _reorder(runs: list[_Run], draws: random.Random) -> None:
    """Put ``runs``, which just took a turn each, into the order of the next round."""
    if len(runs) < 3:
        runs.reverse()
        return
    last = runs[-1]
    draws.shuffle(runs)
    if runs[0] is last:
        runs[0], runs[-1] = runs[-1], runs[0]


def _room(resting: Sequence[_Run]) -> bool:
    """Whether one more run like those in memory has room beside them, with as much again to spare."""
    wanted = 2 * max(one.host_peak for one in resting)
    held = sum(one.host_peak for one in resting)
    return (
        all(one.device_room for one in resting)
        and available_memory() > wanted
        and default_memory_limit() > held + wanted
    )


class _Run:
    """A run, with a thread of its own that waits for it."""

    def __init__(self, start: Start, run: Runner, runs: int) -> None:
        self._run = run
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._version, self._folder = start.version, start.folder
        self._folder.mkdir(parents=True, exist_ok=True)
        pipes = [self._folder / name for name in (RESTING, GO)]
        for pipe in pipes:
            os.mkfifo(pipe)
        # Opened for both, a pipe neither waits for its other end nor breaks when that goes.
        self._resting, self._go = (os.open(pipe, os.O_RDWR | os.O_NONBLOCK) for pipe in pipes)
        self._over, self._ends_over = os.pipe()
        self._ended_by, self._end_it = os.pipe()
        self._alone = start.settings
        timeout = start.settings.timeout_s * runs
        self._settings = replace(
            start.settings, timeout_s=timeout, in_turns=True, ended_by=self._ended_by
        )
        self._found: Observations | None = None
        self._error: BaseException | None = None
        self._said = b""
        self._group: int | None = None
        self.host_peak = 0
        self.device_room = True
        self.beside_others = False

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _work(self) -> None:
        try:
            self._found = self._run(self._version, self._settings, self._folder)
        except BaseException as error:
            self._error = error
        finally:
            os.close(self._ends_over)

    def rests(self) -> bool:
        """Wait until the run rests, or is over; whether it rests."""
        while b"\n" not in self._said:
            ready, _, _ = select.select([self._resting, self._over], [], [])
            if self._resting not in ready:
                self._wait()
                return False
            self._said += os.read(self._resting, 1 << 12)
        line, _, self._said = self._said.partition(b"\n")
        self._hear(json.loads(line))
        return True

    def _hear(self, needs: dict[str, Any]) -> None:
        if needs:
            self._group = needs["group"]
            self.host_peak, self.device_room = needs["host"], needs["device_room"]

    def freeze(self) -> None:
        """Stop all of its processes."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let its first process go on, which lets go the others once it has a core: they must not work ahead meanwhile."""
        if self._group is not None and self._thread.is_alive():
            with suppress(OSError):
                os.kill(self._group, signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._group is not None and self._thread.is_alive():
            with suppress(OSError):
                os.killpg(self._group, number)

    def takes_turn(self) -> bool:
        """Let it run to its next rest; False when it is over instead."""
        os.write(self._go, TURN)
        self.thaw()
        return self.rests()

    def finish(self) -> None:
        """Let it run to its end, without a rest."""
        os.write(self._go, ALONE)
        self.thaw()
        self._wait()

    def _wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End it, in whatever state it is."""
        if self._thread.is_alive():
            self._signal(signal.SIGCONT)
            os.write(self._end_it, b"x")
            self._thread.join()

    def close(self) -> None:
        """Close the pipes; the run is over."""
        for descriptor in (self._resting, self._go, self._over, self._ended_by, self._end_it):
            os.close(descriptor)
        if not self._thread.ident:
            os.close(self._ends_over)

    def observations(self) -> Observations:
        """What the run showed; of one that failed beside others, what it shows by itself."""
        assert self._found is not None
        if self._found.status in ENDED_WELL or not self.beside_others:
            return self._found
        again = self._folder.with_name(self._folder.name + "-alone")
        return self._run(self._version, self._alone, again)
