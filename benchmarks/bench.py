"""The versions of a corpus script that are compared: made, verified and timed."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

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
from .machine import machine
from .scripts import (
    PYTHON,
    CorpusScript,
    Prepared,
    prepare,
    rewrite_options,
    rewritten,
    rewritten_version,
    torchfix_version,
)
from .turns import Contestant, TurnRun, summary

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
        tell(self.script.name, what)

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


def tell(whom: str, what: str) -> None:
    """Progress, with the time of day, to stderr."""
    print(f"  {time.strftime('%H:%M:%S')} {whom}: {what}", file=sys.stderr, flush=True)


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
