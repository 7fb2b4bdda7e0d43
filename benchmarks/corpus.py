"""Every corpus script: the original, torchopt's version, the tuned one, the expert's and what a peer tool makes of it, side by side.

    python -m benchmarks.corpus [--device cpu|cuda] [--torchfix PROGRAM] [--tune MINUTES] [--minutes M --data FOLDER] [SCRIPT...]

What the tools made is verified against the original, then all versions take turns at being timed; ``light`` is torchopt's version on a batch
that is there already, the speed of light of whatever could be done about the data. After each script the results are
written to ``benchmarks/results/<device>.json``, so that an interrupted command goes on where it was: without names, scripts
are left out whose texts and arguments are those of the results, and that were tuned where ``--tune`` asks for it. With ``--minutes`` no script is begun
for which the time is too short, as far as those before tell; with ``--data`` verdicts are kept, too. Why a script could not be measured is written to
``benchmarks/results/failures-<device>.json``. The table is printed and put into the README.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.timing_settings import in_turns_of_their_length
from torchopt_cli.optimizer.tuning.tune import TuneSettings, tune
from torchopt_cli.optimizer.verify_settings import VerifySettings
from torchopt_cli.transforms.registry import all_transforms

from .equivalence import Verdict, equivalence, original_texts, texts_digest
from .machine import load, machine
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
    torchfix_version,
)
from .tables import full_table, write_readme
from .turns import Contestant, summary, take_turns

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
        self, script: CorpusScript, options: argparse.Namespace, folder: Path, python: Path
    ) -> None:
        self.script, self._options, self._python = script, options, python
        self._folder = folder
        done = rewritten(script)
        self._versions: dict[str, tuple[ScriptVersion, Tier | None]] = {
            "torchopt": rewritten_version(done, script),
            EXPERT: (ScriptVersion(script.expert), script.tier),
        }
        if any(version.processes for version, _ in self._versions.values()):
            self._python = PYTHON  # torchrun needs all of it
        self._notes: dict[str, str] = {}
        self._told: dict[str, dict[str, Any]] = {}
        if options.torchfix:
            fixed = torchfix_version(script, options.torchfix)
            if fixed:
                self._versions["torchfix"] = (fixed, TORCHFIX_TIER)
            else:
                self._notes["torchfix"] = "nothing to fix"

    @cached_property
    def _timed(self) -> Prepared:
        timeout = self._options.timeout
        return prepare(self.script, self._folder, self._python, timed=True, timeout_s=timeout)

    def verified(self) -> dict[str, Verdict]:
        """The verdicts on what the tools made. Raises TorchoptError when there is nothing to compare."""
        claims = {name: one for name, one in self._versions.items() if name != EXPERT}
        where = self._folder, self._python, self._options.timeout
        return equivalence(self.script, claims, *where, self._tell)

    def result(self, verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
        """The script's part of the results. Raises TorchoptError when the original fails."""
        before = load()
        rounds = math.ceil(self._options.seconds / self._timed.pace)
        rounds = max(FEWEST_ROUNDS, min(rounds, MOST_ROUNDS))
        turns = self._take_turns(rounds)
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
            "threads": self._options.threads,
            "load": [before, load()],
            "digest": digest(self.script),
            "arguments": list(self.script.arguments(timed=True)),
            "rounds": rounds,
            "sweeps": self._options.sweeps,
            "versions": versions,
        }

    def _tell(self, what: str) -> None:
        print(
            f"  {time.strftime('%H:%M:%S')} {self.script.name}: {what}",
            file=sys.stderr,
            flush=True,
        )

    def tune(self) -> None:
        """Add what ``torchopt tune`` makes of the original within its budget."""
        with tempfile.TemporaryDirectory() as cwd:
            limits = VerifySettings(
                self._python,
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
                    self._timed.arguments,
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

    def _take_turns(self, rounds: int) -> dict[str, Any]:
        contestants = {
            "original": Contestant(ScriptVersion(self.script.original, args=self._timed.arguments))
        }
        for name, (version, _) in self._versions.items():
            timed = replace(version, args=self._timed.arguments)
            if self._options.device == "cpu":
                # One process per GPU: without any, the script is started as before.
                timed = replace(timed, processes=None)
            contestants[name] = Contestant(timed)
        contestants["light"] = Contestant(contestants["torchopt"].version, resident=True)
        with tempfile.TemporaryDirectory() as cwd:
            settings = RunSettings(
                self._python,
                Path(cwd),
                steps=rounds,
                mode=Mode.TIME,
                timeout_s=self._options.timeout,
                env=self.script.environment,
                cache=Path(cwd) / "compiled",
            )
            settings = in_turns_of_their_length(settings, self._timed.pace)
            # On a GPU a start takes longer than what is timed, and there is memory for all.
            together = self._options.device == "cuda"
            return take_turns(
                contestants, settings, self._options.sweeps, self._tell, start_together=together
            )


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
            and (not tuned or "tuned" in result["versions"])
            and result["digest"] == digest(script)
        )

    return [script for script in scripts if not is_measured(script)]


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

    As many as there are ``jobs`` are verified at the same time, and then timed one by one, before the next are: so there are whole
    results whenever the time is over. Those that failed the last time come last.
    """
    ends = time.monotonic() + 60.0 * options.minutes
    failures = Failures(options.device)
    scripts = sorted(scripts, key=lambda script: script.name in failures.known)
    longest, measured = 0.0, 0
    with (
        tempfile.TemporaryDirectory() as temporary,
        interpreter(options.device, options.threads) as python,
    ):
        folder = options.data.absolute() if options.data else Path(temporary)
        for first in range(0, len(scripts), options.jobs):
            some = scripts[first : first + options.jobs]
            made = [
                failures.attempt(s, lambda s=s: Bench(s, options, folder, python)) for s in some
            ]
            benches = [bench for bench in made if bench is not None]
            for bench in benches if options.tune else ():
                failures.attempt(bench.script, bench.tune)
            # Without a verdict it is timed all the same: how fast a version is is another matter.
            verdicts = _verified(benches, failures) if time.monotonic() < ends else {}
            for number, bench in enumerate(benches):
                started = time.monotonic()
                if started + longest > ends:
                    left = [one.script for one in benches[number:]] + scripts[first + len(some) :]
                    names = ", ".join(script.name for script in left)
                    print(
                        f"no time left for {names}: the same command goes on there", file=sys.stderr
                    )
                    return measured
                told = verdicts.get(bench.script.name)
                found = failures.attempt(
                    bench.script, lambda bench=bench, told=told: bench.result(told or {})
                )
                if found is not None:
                    results[bench.script.name] = found
                    write_results(options.device, results)
                    if told is not None:
                        measured += 1
                        failures.forget(bench.script)
                longest = max(longest, time.monotonic() - started)
    return measured


def _verified(benches: Sequence[Bench], failures: Failures) -> dict[str, dict[str, Verdict]]:
    """The verdicts by script, of those that could be verified, all at the same time."""
    with ThreadPoolExecutor(max(1, len(benches))) as pool:
        found = pool.map(lambda bench: failures.attempt(bench.script, bench.verified), benches)
        pairs = zip(benches, found, strict=True)
        return {bench.script.name: told for bench, told in pairs if told is not None}


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
