"""Every corpus script: the original, torchopt's version, the tuned one, the expert's and what a peer tool makes of it, side by side.

    python -m benchmarks.corpus [--device cpu|cuda] [--torchfix PROGRAM] [--tune MINUTES] [--minutes M --data FOLDER] [SCRIPT...]

What the tools made is verified against the original, then all versions take turns at being timed; ``light`` is torchopt's version on a batch
that is there already, the speed of light of whatever could be done about the data. After each script, or as many as are timed ``--together``, the results are
written to ``benchmarks/results/<device>.json``, so that an interrupted command goes on where it was: without names, scripts
are left out whose texts and arguments are those of the results, and that were tuned where ``--tune`` asks for it. With ``--minutes`` no script is begun
for which the time is too short, as far as those before tell; with ``--data`` verdicts are kept, too. Why a script could not be measured is written to
``benchmarks/results/failures-<device>.json``. The table is printed and put into the README.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion, run
from torchopt_cli.optimizer.measuring.timing_settings import in_turns_of_their_length
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.profiling.opportunities import usable_cores
from torchopt_cli.optimizer.tuning.tune import TuneSettings, tune
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.transforms.registry import all_transforms

from .equivalence import (
    Verdict,
    equivalence,
    known_verdicts,
    original_texts,
    texts_digest,
    version_digest,
)
from .machine import device_room, load, machine
from .results import read_failures, read_results, write_failures, write_results
from .scripts import (
    PYTHON,
    TIMEOUT_S,
    CorpusScript,
    Prepared,
    corpus,
    interpreter,
    prepare,
    rewrite_options,
    rewritten,
    rewritten_version,
    timing_interpreter,
    torchfix_version,
)
from .tables import full_table, write_readme
from .turns import Contestant, TurnRun, summary, take_turns

CONTEXT_BYTES = 1 << 30
"""What a process takes of a GPU beside its tensors, the context and the libraries' workspaces, with room to spare."""
PEAKS = "peaks.json"
WARMING_ROUNDS = 5
FEWEST_ROUNDS, MOST_ROUNDS = 60, 500
"""Three epochs of most scripts of the corpus: the evaluations between them count, where two are timed."""
EXPERT = "expert"
"""Is what it is, and not verified again here: ``tests/corpus`` does that."""
TORCHFIX_TIER = None
"""The strictest that holds: it claims none."""
_T = TypeVar("_T")


class Bench:
    """The versions of one script, verified and timed."""

    def __init__(
        self,
        script: CorpusScript,
        options: argparse.Namespace,
        folder: Path,
        pythons: tuple[Path, Path],
    ) -> None:
        self.script, self._options, self._folder = script, options, folder
        self._python, self._timing_python = pythons
        done = rewritten(script)
        self._versions: dict[str, tuple[ScriptVersion, Tier | None]] = {
            "torchopt": rewritten_version(done, script),
            EXPERT: (ScriptVersion(script.expert), script.tier),
        }
        if any(version.processes for version, _ in self._versions.values()):
            self._python = self._timing_python = PYTHON  # torchrun needs all of it
        self._notes: dict[str, str] = {}
        self._told: dict[str, dict[str, Any]] = {}
        if options.torchfix:
            fixed = torchfix_version(script, options.torchfix)
            if fixed:
                self._versions["torchfix"] = (fixed, TORCHFIX_TIER)
            else:
                self._notes["torchfix"] = "nothing to fix"

    @cached_property
    def prepared(self) -> Prepared:
        """The script as it is timed, its data made. Raises RuntimeError when it fails."""
        timeout = self._options.timeout
        return prepare(self.script, self._folder, self._python, timed=True, timeout_s=timeout)

    @cached_property
    def device_memory(self) -> int:
        """What one run of each version takes of a GPU together, in bytes, roughly; they have their kernels compiled then.

        Raises RuntimeError when the original fails.
        """
        original = self.prepared.device_memory
        if self._options.device == "cpu":
            return 0
        with tempfile.TemporaryDirectory(prefix="torchopt-", ignore_cleanup_errors=True) as place:
            contestants = self.contestants(Path(place) / "cwd")
            peaks = {"original": original}
            for name in contestants.keys() - {"original", "light"}:
                peaks[name] = self._peak(contestants[name], Path(place) / name)
        peaks["light"] = peaks["torchopt"]
        return sum(peak * 5 // 4 + CONTEXT_BYTES for peak in peaks.values())

    def _peak(self, contestant: Contestant, place: Path) -> int:
        """The peak of device memory of a few rounds, run in ``place`` unless it is known."""
        version = contestant.version
        key = version_digest(self.script, version, version.entry.name, version.args)
        kept = self._folder / self.script.name / PEAKS
        known: dict[str, int] = json.loads(kept.read_text()) if kept.exists() else {}
        if key not in known:
            few = replace(contestant.settings, python=self._python, steps=WARMING_ROUNDS)
            known[key] = run(version, few, place).memory.device or 0
            kept.write_text(json.dumps(known))
        return known[key]

    def verified(self) -> dict[str, Verdict]:
        """The verdicts on what the tools made. Raises TorchoptError when there is nothing to compare."""
        claims = {name: one for name, one in self._versions.items() if name != EXPERT}
        if self._options.time_only:
            return known_verdicts(self.script, claims, self._folder)
        where = self._folder, self._python, self._options.timeout
        return equivalence(self.script, claims, *where, self._tell)

    def result(
        self,
        verdicts: Mapping[str, Verdict],
        turns: dict[str, list[TurnRun] | str],
        loads: list[float],
    ) -> dict[str, Any]:
        """The script's part of the results, of the ``turns`` of its versions. Raises TorchoptError when the original fails."""
        originals = turns.pop("original")
        if isinstance(originals, str):
            raise TorchoptError(f"the original fails when timed: {originals}")
        versions: dict[str, Any] = {"original": summary(originals, originals)}
        for name, runs in turns.items():
            told = {"failed": runs} if isinstance(runs, str) else summary(runs, originals)
            versions[name] = told | verdicts.get(name, {}) | self._told.get(name, {})
        versions |= {name: {"note": note} for name, note in self._notes.items()}
        return {
            "machine": machine(self.script.device),
            "threads": self._options.threads if self.script.device == "cpu" else usable_cores(),
            "load": loads,
            "digest": digest(self.script),
            "arguments": list(self.script.arguments(timed=True)),
            "rounds": self._rounds,
            "sweeps": self._options.sweeps,
            "versions": versions,
        }

    def _tell(self, what: str) -> None:
        _tell(self.script.name, what)

    def tune(self) -> None:
        """Add what ``torchopt tune`` makes of the original within its budget."""
        with tempfile.TemporaryDirectory() as cwd:
            limits = VerifySettings(
                self._timing_python,
                Path(cwd),
                timeout_s=self._options.timeout,
                env=self.script.environment,
            )
            journal = Path(cwd) / "journal.json"
            settings = TuneSettings(limits, 60.0 * self._options.tune, journal)
            try:
                tuned = tune(
                    self.script.original,
                    all_transforms(),
                    rewrite_options(self.script),
                    self.prepared.arguments,
                    settings,
                    self._tell,
                )
            except TorchoptError as error:
                self._notes["tuned"] = f"cannot be tuned: {error.message}"
                return
        if tuned.winner is None or tuned.verified is None:
            self._notes["tuned"] = "nothing that was tried is faster"
        else:
            self._versions["tuned"] = rewritten_version(tuned.verified.rewritten, self.script)
            told = {"configuration": tuned.winner.label, "tuning_seconds": tuned.seconds}
            self._told["tuned"] = told

    @property
    def _rounds(self) -> int:
        rounds = math.ceil(self._options.seconds / self.prepared.pace)
        return max(FEWEST_ROUNDS, min(rounds, MOST_ROUNDS))

    def contestants(self, cwd: Path) -> dict[str, Contestant]:
        """The versions as they are timed in ``cwd``, by name. Raises RuntimeError when the original fails."""
        cwd.mkdir(exist_ok=True)
        settings = RunSettings(
            self._timing_python,
            cwd,
            steps=self._rounds,
            mode=Mode.TIME,
            timeout_s=self._options.timeout,
            env=self.script.environment,
            cache=self._folder / self.script.name / "compiled",
        )
        settings = in_turns_of_their_length(settings, self.prepared.pace)
        versions = {"original": ScriptVersion(self.script.original)}
        versions |= {name: version for name, (version, _) in self._versions.items()}
        found: dict[str, Contestant] = {}
        for name, version in versions.items():
            # One process per GPU: without any, the script is started as before.
            processes = None if self._options.device == "cpu" else version.processes
            timed = replace(version, args=self.prepared.arguments, processes=processes)
            found[name] = Contestant(timed, settings)
        light = replace(settings, resident_batch=True)
        return found | {"light": Contestant(found["torchopt"].version, light)}


def digest(script: CorpusScript) -> str:
    """Changes with the script's own files and arguments, and with what torchopt makes of it."""
    made = [file.text for file in rewritten(script).changed]
    arguments = [script.arguments(timed=False), script.arguments(timed=True)]
    return texts_digest([*original_texts(script), *made], *arguments)


def outdated(
    scripts: Sequence[CorpusScript], results: Mapping[str, Any], *, tuned: bool
) -> list[CorpusScript]:
    """The scripts without a result or a verdict, with ``tuned`` without a tuned version, and those that are no longer what was measured."""

    def is_measured(script: CorpusScript) -> bool:
        result = results.get(script.name)
        return bool(
            result is not None
            and {"outcome", "failed"} & {*result["versions"]["torchopt"]}
            and is_timed(script, result, tuned=tuned)
        )

    return [script for script in scripts if not is_measured(script)]


def is_timed(script: CorpusScript, result: Mapping[str, Any], *, tuned: bool) -> bool:
    """Whether ``result`` is of the script as it is now, with ``tuned`` with a tuned version: a verdict may be missing."""
    return result["digest"] == digest(script) and (not tuned or "tuned" in result["versions"])


def main() -> int:
    """Exits with 1 where a script could not be measured, or there was no time for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "scripts", nargs="*", help="folders of corpus/ (default: those without a valid result)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sweeps", type=int, default=3, help="timed runs of each version")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each timed run, about")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch in each process, on a CPU (default: 1)"
    )
    parser.add_argument(
        "--torchfix", type=Path, metavar="PROGRAM", help="compare with this TorchFix"
    )
    parser.add_argument(
        "--tune", type=float, metavar="MINUTES", help="compare with what tune finds in that time"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="keep the scripts' data and verdicts here"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="scripts verified at the same time (they are timed alone)",
    )
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        metavar="N",
        help="scripts whose versions all take turns with each other, which spares waiting for starts",
    )
    parser.add_argument(
        "--verify-only", action="store_true", help="time nothing; with --data what is found is kept"
    )
    parser.add_argument(
        "--time-only", action="store_true", help="verify nothing; the verdicts in --data are taken"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin nothing that would take longer"
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="of each run"
    )
    parser.add_argument(
        "--table", action="store_true", help="measure nothing; print the table of the results"
    )
    options = parser.parse_args()
    results = read_results(options.device)
    complete = True
    if not options.table:
        wanted = corpus(options.scripts, options.device)
        if not options.scripts:
            wanted = outdated(wanted, results, tuned=options.tune is not None)
        complete = measure(wanted, results, options) == len(wanted)
    print(full_table(results))
    write_readme()
    return 0 if complete else 1


def measure(
    scripts: Sequence[CorpusScript], results: dict[str, Any], options: argparse.Namespace
) -> int:
    """Measure ``scripts`` into ``results``; how many of them were.

    As many as there are ``jobs`` are verified at the same time, and then timed, before the next are: so there are whole
    results whenever the time is over. Those that failed the last time come last. Without names, what is timed already is
    not timed again: its results get the verdicts that they lack.
    """
    ends = time.monotonic() + 60.0 * options.minutes
    failures = Failures(options.device)
    scripts = sorted(scripts, key=lambda script: script.name in failures.known)
    timed = {
        script.name
        for script in ([] if options.scripts else scripts)
        if script.name in results
        and is_timed(script, results[script.name], tuned=options.tune is not None)
    }
    longest, measured = 0.0, 0
    with (
        tempfile.TemporaryDirectory() as temporary,
        interpreter(options.device, options.threads, options.jobs) as python,
        nullcontext(python)
        if options.verify_only
        else timing_interpreter(options.device, python) as timing_python,
    ):
        pythons = python, timing_python
        folder = options.data.absolute() if options.data else Path(temporary)
        step = max(1, len(scripts)) if options.verify_only else options.jobs
        for first in range(0, len(scripts), step):
            some = scripts[first : first + step]
            made = [
                failures.attempt(s, lambda s=s: Bench(s, options, folder, pythons)) for s in some
            ]
            benches = [bench for bench in made if bench is not None]
            for bench in benches if options.tune else ():
                if bench.script.name not in timed:
                    failures.attempt(bench.script, bench.tune)
            # Without a verdict it is timed all the same: how fast a version is is another matter.
            verdicts = (
                _verified(benches, timed, failures, options) if time.monotonic() < ends else {}
            )
            judged = [
                b.script for b in benches if b.script.name in timed and verdicts.get(b.script.name)
            ]
            for script in judged:
                _add_verdicts(results[script.name]["versions"], verdicts[script.name])
                failures.forget(script)
            if judged:
                write_results(options.device, results)
            if options.verify_only:
                measured += len(verdicts)
                continue
            measured += len(judged)
            waiting = [bench for bench in benches if bench.script.name not in timed]
            while waiting:
                started = time.monotonic()
                if started + longest > ends:
                    left = [one.script for one in waiting] + scripts[first + len(some) :]
                    names = ", ".join(script.name for script in left)
                    print(
                        f"no time left for {names}: the same command goes on there", file=sys.stderr
                    )
                    return measured
                group, waiting = _together(waiting, failures, options)
                for bench, found in _timed(group, verdicts, failures, options) if group else ():
                    results[bench.script.name] = found
                    write_results(options.device, results)
                    if verdicts.get(bench.script.name):
                        measured += 1
                        failures.forget(bench.script)
                longest = max(longest, time.monotonic() - started)
    return measured


def _add_verdicts(versions: dict[str, dict[str, Any]], verdicts: Mapping[str, Verdict]) -> None:
    """Add ``verdicts`` to the versions of a result that they are about, as far as it has them."""
    for name in verdicts.keys() & versions.keys():
        versions[name] |= verdicts[name]


def _verified(
    benches: Sequence[Bench],
    timed: Container[str],
    failures: Failures,
    options: argparse.Namespace,
) -> dict[str, dict[str, Verdict]]:
    """The verdicts by script, of those that could be verified, as many ``jobs`` at the same time as there are.

    What is not ``timed`` yet is prepared for it beside a GPU.
    """

    def work(bench: Bench) -> dict[str, Verdict] | None:
        shares = options.device == "cuda" and options.jobs > 1
        if shares and bench.script.name not in timed:  # what timing takes is made meanwhile
            failures.attempt(bench.script, lambda: bench.device_memory)
        return failures.attempt(bench.script, bench.verified)

    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        pairs = zip(benches, pool.map(work, benches), strict=True)
        return {bench.script.name: told for bench, told in pairs if told is not None}


def _together(
    waiting: Sequence[Bench], failures: Failures, options: argparse.Namespace
) -> tuple[list[Bench], list[Bench]]:
    """The first of ``waiting`` to time together, at least one, and the others: as many as the device has memory for."""
    room = device_room(options.device)
    group: list[Bench] = []
    rest = [*waiting]
    while rest and len(group) < options.together:
        wanted = failures.attempt(rest[0].script, lambda: options.sweeps * rest[0].device_memory)
        if wanted is not None and group and wanted > room:
            break
        bench = rest.pop(0)
        if wanted is not None:
            room -= wanted
            group.append(bench)
    return group, rest


def _timed(
    group: Sequence[Bench],
    verdicts: Mapping[str, Mapping[str, Verdict]],
    failures: Failures,
    options: argparse.Namespace,
) -> Iterator[tuple[Bench, dict[str, Any]]]:
    """The results of the scripts of ``group`` that could be timed: all versions of all of them take turns."""
    before = load()
    with tempfile.TemporaryDirectory(prefix="torchopt-", ignore_cleanup_errors=True) as temporary:
        contestants = {
            (bench.script.name, name): one
            for bench in group
            for name, one in bench.contestants(Path(temporary) / bench.script.name).items()
        }
        at_once = 0
        if options.device == "cuda":  # where a start takes longer than what is timed
            needed = sum(bench.device_memory for bench in group)
            at_once = min(options.sweeps, device_room(options.device) // needed)
        names = ", ".join(bench.script.name for bench in group)
        turns = failures.attempt(
            group[0].script,
            lambda: take_turns(
                contestants, options.sweeps, lambda what: _tell(names, what), at_once=at_once
            ),
        )
    loads = [before, load()]
    for bench in group if turns is not None else ():
        name = bench.script.name
        own = {version: runs for (of, version), runs in (turns or {}).items() if of == name}
        found = failures.attempt(
            bench.script,
            lambda bench=bench, own=own: bench.result(
                verdicts.get(bench.script.name, {}), own, loads
            ),
        )
        if found is not None:
            yield bench, found


def _tell(whom: str, what: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {whom}: {what}", file=sys.stderr, flush=True)


class Failures:
    """Why scripts could not be measured, written down. One that cannot be leaves the others to be."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.known = read_failures(device)

    def attempt(self, script: CorpusScript, work: Callable[[], _T]) -> _T | None:
        """What ``work`` gives; None, once it is said and written why, where the script cannot be measured."""
        if script.missing:
            return self._failed(script, f"needs {', '.join(script.missing)}")
        try:
            return work()
        except (TorchoptError, RuntimeError) as error:
            return self._failed(script, str(error))
        except Exception:
            return self._failed(script, traceback.format_exc())

    def forget(self, script: CorpusScript) -> None:
        """It was measured."""
        if self.known.pop(script.name, None) is not None:
            write_failures(self._device, self.known)

    def _failed(self, script: CorpusScript, why: str) -> None:
        print(f"{script.name}: {why}", file=sys.stderr)
        self.known[script.name] = why
        write_failures(self._device, self.known)


if __name__ == "__main__":
    sys.exit(main())
