"""The corpus measured, script by script, as far as the time goes."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from .bench import Bench, is_timed, tell
from .equivalence import Verdict
from .failures import Failures
from .machine import device_room, load
from .results import write_results
from .scripts import CorpusScript, interpreter, timing_interpreter
from .turns import take_turns


def measure(
    scripts: Sequence[CorpusScript], results: dict[str, Any], options: argparse.Namespace
) -> int:
    """Measure ``scripts`` into ``results``; how many of them were.

    As many as there are ``jobs`` are verified at the same time, and then timed, before the next are: so there are whole
    results whenever the time is over. Those that failed the last time come last. Without names, what is timed already is
    not timed again: its results get the verdicts that they lack.
    """
    with (
        tempfile.TemporaryDirectory() as temporary,
        interpreter(options.device, options.threads, options.jobs) as python,
        nullcontext(python)
        if options.verify_only
        else timing_interpreter(options.device, python) as timing_python,
    ):
        folder = options.data.absolute() if options.data else Path(temporary)
        measuring = _Measuring(results, options, folder, (python, timing_python))
        return measuring.all(scripts)


class _Measuring:
    """What one command measures: ``results`` by script grow, and how many ``measured`` scripts there are."""

    def __init__(
        self,
        results: dict[str, Any],
        options: argparse.Namespace,
        folder: Path,
        pythons: tuple[Path, Path],
    ) -> None:
        self._results, self._options = results, options
        self._folder, self._pythons = folder, pythons
        self._failures = Failures(options.device)
        self._ends = time.monotonic() + 60.0 * options.minutes
        self._longest = 0.0
        self._measured = 0

    def all(self, scripts: Sequence[CorpusScript]) -> int:
        """How many of ``scripts`` were measured before the time was over."""
        waiting = sorted(scripts, key=lambda script: script.name in self._failures.known)
        timed = {script.name for script in waiting if self._is_timed(script)}
        step = max(1, len(waiting)) if self._options.verify_only else self._options.jobs
        while waiting:
            some, waiting = waiting[:step], waiting[step:]
            left = self._some(some, timed)
            if left:
                names = ", ".join(script.name for script in [*left, *waiting])
                print(f"no time left for {names}: the same command goes on there", file=sys.stderr)
                break
        return self._measured

    def _is_timed(self, script: CorpusScript) -> bool:
        """Whether it need not be timed: one that is named is timed anew."""
        result = self._results.get(script.name)
        tuned = self._options.tune is not None
        return (
            not self._options.scripts
            and result is not None
            and is_timed(script, result, tuned=tuned)
        )

    def _some(self, scripts: Sequence[CorpusScript], timed: Container[str]) -> list[CorpusScript]:
        """Measure ``scripts``, of which some are ``timed`` already; those for which there is no time left."""
        made = [self._failures.attempt(s, lambda s=s: self._bench(s)) for s in scripts]
        benches = [bench for bench in made if bench is not None]
        untimed = [bench for bench in benches if bench.script.name not in timed]
        for bench in untimed if self._options.tune else ():
            self._failures.attempt(bench.script, bench.tune)
        # Without a verdict it is timed all the same: how fast a version is is another matter.
        in_time = time.monotonic() < self._ends
        verdicts = self._verified(benches, timed) if in_time else {}
        judged = [b.script for b in benches if b not in untimed and verdicts.get(b.script.name)]
        for script in judged:
            _add_verdicts(self._results[script.name]["versions"], verdicts[script.name])
            self._failures.forget(script)
        if judged:
            write_results(self._options.device, self._results)
        if self._options.verify_only:
            self._measured += len(verdicts)
            return []
        self._measured += len(judged)
        return self._time(untimed, verdicts)

    def _bench(self, script: CorpusScript) -> Bench:
        return Bench(script, self._options, self._folder, self._pythons)

    def _time(
        self, waiting: list[Bench], verdicts: Mapping[str, Mapping[str, Verdict]]
    ) -> list[CorpusScript]:
        """Time what is ``waiting``, in groups; the scripts for which there is no time left."""
        while waiting:
            started = time.monotonic()
            if started + self._longest > self._ends:
                break
            group, waiting = self._together(waiting)
            for bench, found in self._timed(group, verdicts) if group else ():
                self._results[bench.script.name] = found
                write_results(self._options.device, self._results)
                if verdicts.get(bench.script.name):
                    self._measured += 1
                    self._failures.forget(bench.script)
            self._longest = max(self._longest, time.monotonic() - started)
        return [bench.script for bench in waiting]

    def _verified(
        self, benches: Sequence[Bench], timed: Container[str]
    ) -> dict[str, dict[str, Verdict]]:
        """The verdicts by script, of those that could be verified, as many ``jobs`` at the same time as there are.

        What is not ``timed`` yet is prepared for it beside a GPU.
        """

        def work(bench: Bench) -> dict[str, Verdict] | None:
            shares = self._options.device == "cuda" and self._options.jobs > 1
            if shares and bench.script.name not in timed:  # what timing takes is made meanwhile
                self._failures.attempt(bench.script, lambda: bench.device_memory)
            return self._failures.attempt(bench.script, bench.verified)

        with ThreadPoolExecutor(max(1, self._options.jobs)) as pool:
            pairs = zip(benches, pool.map(work, benches), strict=True)
            return {bench.script.name: told for bench, told in pairs if told is not None}

    def _together(self, waiting: Sequence[Bench]) -> tuple[list[Bench], list[Bench]]:
        """The first of ``waiting`` to time together, at least one, and the others: as many as the device has memory for."""
        room = device_room(self._options.device)
        group: list[Bench] = []
        rest = [*waiting]
        while rest and len(group) < self._options.together:
            wanted = self._failures.attempt(
                rest[0].script, lambda: self._options.sweeps * rest[0].device_memory
            )
            if wanted is not None and group and wanted > room:
                break
            bench = rest.pop(0)
            if wanted is not None:
                room -= wanted
                group.append(bench)
        return group, rest

    def _timed(
        self, group: Sequence[Bench], verdicts: Mapping[str, Mapping[str, Verdict]]
    ) -> Iterator[tuple[Bench, dict[str, Any]]]:
        """The results of the scripts of ``group`` that could be timed: all versions of all of them take turns."""
        before = load()
        with tempfile.TemporaryDirectory(
            prefix="torchopt-", ignore_cleanup_errors=True
        ) as temporary:
            contestants = {
                (bench.script.name, name): one
                for bench in group
                for name, one in bench.contestants(Path(temporary) / bench.script.name).items()
            }
            at_once = 0
            if self._options.device == "cuda":  # where a start takes longer than what is timed
                needed = sum(bench.device_memory for bench in group)
                at_once = min(self._options.sweeps, device_room(self._options.device) // needed)
            names = ", ".join(bench.script.name for bench in group)
            turns = self._failures.attempt(
                group[0].script,
                lambda: take_turns(
                    contestants,
                    self._options.sweeps,
                    lambda what: tell(names, what),
                    at_once=at_once,
                ),
            )
        loads = [before, load()]
        for bench in group if turns is not None else ():
            name = bench.script.name
            own = {version: runs for (of, version), runs in (turns or {}).items() if of == name}
            found = self._failures.attempt(
                bench.script,
                lambda bench=bench, own=own: bench.result(
                    verdicts.get(bench.script.name, {}), own, loads
                ),
            )
            if found is not None:
                yield bench, found


def _add_verdicts(versions: dict[str, dict[str, Any]], verdicts: Mapping[str, Verdict]) -> None:
    """Add ``verdicts`` to the versions of a result that they are about, as far as it has them."""
    for name in verdicts.keys() & versions.keys():
        versions[name] |= verdicts[name]
