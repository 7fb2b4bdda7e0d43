"""Every corpus script: the original, torchopt's version, the tuned one, the expert's and what a peer tool makes of it, side by side.

    python -m benchmarks.corpus [--device cpu|cuda] [--torchfix PROGRAM] [--tune MINUTES] [SCRIPT...]

What the tools made is verified against the original, then all versions take turns at being timed; ``light`` is torchopt's version on a batch
that is there already, the speed of light of whatever could be done about the data. After each script the results are
written to ``benchmarks/results/<device>.json``, so that an interrupted command goes on where it was: without names, scripts
are left out whose texts and arguments are those of the results, and that were tuned where ``--tune`` asks for it. The table is printed and put into the README.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.original_runs import original_runs
from torchopt_cli.optimizer.tuning.tune import TuneSettings, tune
from torchopt_cli.optimizer.verification import (
    VerifySettings,
    in_turns_of_their_length,
    verify_against,
)
from torchopt_cli.transforms.registry import all_transforms

from .machine import load, machine
from .results import read_results, write_results
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


class Bench:
    """The versions of one script, verified and timed."""

    def __init__(
        self, script: CorpusScript, options: argparse.Namespace, folder: Path, python: Path
    ) -> None:
        self._script, self._options, self._python = script, options, python
        self._short = prepare(script, folder, python, timed=False)
        self._timed = prepare(script, folder, python, timed=True)
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

    def result(self) -> dict[str, Any]:
        """The script's part of the results. Raises TorchoptError when there is nothing to compare."""
        before = load()
        if self._options.tune:
            self._tune()
        equivalence = self._verified()
        rounds = math.ceil(self._options.seconds / self._timed.pace)
        rounds = max(FEWEST_ROUNDS, min(rounds, MOST_ROUNDS))
        turns = self._take_turns(rounds)
        originals = turns.pop("original")
        if isinstance(originals, str):
            raise TorchoptError(f"the original fails when timed: {originals}")
        versions: dict[str, Any] = {"original": summary(originals, originals)}
        for name, runs in turns.items():
            told = {"failed": runs} if isinstance(runs, str) else summary(runs, originals)
            versions[name] = told | equivalence.get(name, {}) | self._told.get(name, {})
        versions |= {name: {"note": note} for name, note in self._notes.items()}
        return {
            "machine": machine(self._script.device),
            "threads": self._options.threads,
            "load": [before, load()],
            "digest": digest(self._script),
            "arguments": list(self._script.arguments(timed=True)),
            "rounds": rounds,
            "sweeps": self._options.sweeps,
            "versions": versions,
        }

    def _tell(self, what: str) -> None:
        print(
            f"  {time.strftime('%H:%M:%S')} {self._script.name}: {what}",
            file=sys.stderr,
            flush=True,
        )

    def _tune(self) -> None:
        """What ``torchopt tune`` makes of the original within its budget."""
        with tempfile.TemporaryDirectory() as cwd:
            limits = VerifySettings(
                self._python, Path(cwd), timeout_s=TIMEOUT_S, env=self._script.environment
            )
            journal = Path(cwd) / "journal.json"
            settings = TuneSettings(limits, 60.0 * self._options.tune, journal)
            try:
                tuned = tune(
                    self._script.original,
                    all_transforms(),
                    rewrite_options(self._script),
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
            self._versions["tuned"] = rewritten_version(tuned.verified.rewritten, self._script)
            told = {"configuration": tuned.winner.label, "tuning_seconds": tuned.seconds}
            self._told["tuned"] = told

    def _verified(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        original = _started(ScriptVersion(self._script.original), self._short)
        with tempfile.TemporaryDirectory() as cwd, original_runs(original) as runs:
            for name, (version, tier) in self._versions.items():
                if name == EXPERT:
                    continue
                settings = VerifySettings(
                    self._python,
                    Path(cwd),
                    tier=tier,
                    timeout_s=TIMEOUT_S,
                    measure_speed=False,
                    env=self._script.environment,
                )
                report = verify_against(
                    runs,
                    _started(version, self._short),
                    settings,
                    lambda progress, name=name: self._tell(f"{name}: {progress.description}"),
                )
                if report.verdict is None:
                    failure = report.original_failure
                    raise TorchoptError(f"the original fails: {failure and failure.details}")
                found[name] = {
                    "outcome": report.verdict.outcome.value,
                    "tier": report.verdict.tier.label,
                    "reason": report.verdict.reason,
                }
        return found

    def _take_turns(self, rounds: int) -> dict[str, Any]:
        contestants = {
            "original": Contestant(ScriptVersion(self._script.original, args=self._timed.arguments))
        }
        for name, (version, _) in self._versions.items():
            timed = _started(version, self._timed)
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
                timeout_s=TIMEOUT_S,
                env=self._script.environment,
                cache=Path(cwd) / "compiled",
            )
            settings = in_turns_of_their_length(settings, self._timed.pace)
            return take_turns(contestants, settings, self._options.sweeps, self._tell)


def _started(version: ScriptVersion, prepared: Prepared) -> ScriptVersion:
    return replace(version, args=prepared.arguments)


def digest(script: CorpusScript) -> str:
    """Changes with the script's own files and arguments, and with what torchopt makes of it."""
    files = sorted(script.original.parent.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in files]
    texts += [file.text for file in rewritten(script).changed]
    known = json.dumps([texts, script.arguments(timed=False), script.arguments(timed=True)])
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def outdated(
    scripts: Sequence[CorpusScript], results: Mapping[str, Any], *, tuned: bool
) -> list[CorpusScript]:
    """The scripts without a result, with ``tuned`` without a tuned version, and those that are no longer what was measured."""

    def is_measured(script: CorpusScript) -> bool:
        result = results.get(script.name)
        return (
            result is not None
            and (not tuned or "tuned" in result["versions"])
            and result["digest"] == digest(script)
        )

    return [script for script in scripts if not is_measured(script)]


def main() -> None:
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
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keep the scripts' data here")
    parser.add_argument(
        "--table", action="store_true", help="measure nothing; print the table of the results"
    )
    options = parser.parse_args()
    results = read_results(options.device)
    if not options.table:
        wanted = corpus(options.scripts, options.device)
        if not options.scripts:
            wanted = outdated(wanted, results, tuned=options.tune is not None)
        _measure(wanted, results, options)
    print(full_table(results))
    write_readme()


def _measure(
    scripts: list[CorpusScript], results: dict[str, Any], options: argparse.Namespace
) -> None:
    with (
        tempfile.TemporaryDirectory() as temporary,
        interpreter(options.device, options.threads) as python,
    ):
        folder = options.data.absolute() if options.data else Path(temporary)
        for script in scripts:
            if script.missing:
                print(f"{script.name}: needs {', '.join(script.missing)}", file=sys.stderr)
                continue
            try:
                results[script.name] = Bench(script, options, folder, python).result()
            except (TorchoptError, RuntimeError) as error:
                print(f"{script.name}: {error}", file=sys.stderr)
                continue
            write_results(options.device, results)


if __name__ == "__main__":
    main()
