"""Gate one script: equivalent first, then fast enough, and if not, what got slower."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ..comparison.verdict import Outcome
from ..errors import ExitCode, TorchoptError
from ..execution.observations import said_last
from ..execution.profile_record import Phase
from ..execution.runner import RunSettings, ScriptVersion, run
from ..failure_hints import input_hint
from ..measuring.measurement import (
    Measurement,
    Speedup,
    TimedRun,
    TooShort,
    compare_speeds,
    log_speedups,
)
from ..measuring.timed_runs import RunFailed, time_side_by_side
from ..measuring.timing_settings import settings_by_pace
from ..options import Tier
from ..profiling.profile import ProfileSettings, ScriptFailed, StepProfile, profile
from ..profiling.report import phase_label
from ..verifying.result import VerificationReport
from ..verifying.settings import VerifySettings
from ..verifying.verification import verify
from .precision import FIRST_PAIRS, pairs_needed

TIMED_SECONDS = 10.0
MOST_PAIRS = 24
FEWEST_PROFILED, PROFILED_INTERLUDES = 50, 4
"""Steps, and evaluations among them: a profile counts those that come in the middle three fifths, so two of four."""


class Gated(str, Enum):
    """What became of one script."""

    PASSED = "passed"
    NOT_EQUIVALENT = "not equivalent"
    TOO_SLOW = "not fast enough"
    INCONCLUSIVE = "inconclusive"
    ORIGINAL_FAILED = "original failed"
    ERROR = "could not be gated"


EXIT_CODES = {
    Gated.PASSED: ExitCode.OK,
    Gated.NOT_EQUIVALENT: ExitCode.NOT_EQUIVALENT,
    Gated.TOO_SLOW: ExitCode.NOT_FAST_ENOUGH,
    Gated.INCONCLUSIVE: ExitCode.FINDINGS,
    Gated.ORIGINAL_FAILED: ExitCode.SCRIPT_FAILED,
    Gated.ERROR: ExitCode.USAGE,
}


@dataclass(frozen=True)
class Job:
    """One comparison to make. ``name`` is what to call it; ``before`` is the original, or the script in the base.

    ``expected`` is the speedup of a change that is in order, None where any is: 1 against a base commit.
    ``steps`` and ``epoch_seconds`` are as in :class:`..verifying.settings.VerifySettings`. ``emulated`` asks for CUDA to be emulated, in which case no speed is measured. ``env`` is for the script's runs.
    """

    name: str
    before: ScriptVersion
    after: ScriptVersion
    tier: Tier | None
    minimum: float
    expected: float | None
    steps: int
    epoch_seconds: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    emulated: bool = False


@dataclass(frozen=True)
class Limits:
    """What holds for all jobs: the interpreter, where scripts are started, seed, seconds per run, pairs of runs."""

    python: Path
    cwd: Path
    seed: int = 0
    timeout_s: float = 600.0
    pairs: int = MOST_PAIRS


@dataclass(frozen=True)
class PhaseChange:
    """Mean seconds per step that a phase takes in both versions."""

    phase: Phase
    before: float
    after: float


@dataclass(frozen=True)
class Judgement:
    """What one job came to. ``reason`` is one line.

    ``measurement`` is None when no speed was measured, and ``speed_note`` then says why. ``phases`` are those of a
    script that was too slow, the one that lost most first. ``details`` is the traceback of a script that failed.
    """

    job: Job
    gated: Gated
    reason: str
    report: VerificationReport | None = None
    measurement: Measurement | None = None
    speed_note: str | None = None
    phases: tuple[PhaseChange, ...] = ()
    details: str | None = None

    @property
    def speedup(self) -> Speedup | None:
        return self.measurement.speedup if self.measurement else None


def judge(job: Job, limits: Limits, progress: Callable[[str], None]) -> Judgement:
    """Run both versions of ``job`` as often as needed; ``progress`` is told what runs. Never raises TorchoptError."""
    try:
        return _Judge(job, limits, progress).judgement()
    except TorchoptError as error:
        is_named = error.path == job.after.entry and error.line is None
        return Judgement(job, Gated.ERROR, error.message if is_named else str(error))


class _Judge:
    def __init__(self, job: Job, limits: Limits, progress: Callable[[str], None]) -> None:
        self._job, self._limits, self._progress = job, limits, progress

    def judgement(self) -> Judgement:
        report = verify(
            self._job.before,
            self._job.after,
            self._verify_settings(),
            lambda p: self._progress(p.description),
        )
        unequal = self._unequal(report)
        if unequal is not None:
            return unequal
        if self._job.emulated:
            note = "speed was not gated: there is no GPU, CUDA was emulated"
            return Judgement(self._job, Gated.PASSED, _reason(report), report, speed_note=note)
        with tempfile.TemporaryDirectory(prefix="torchopt-", ignore_cleanup_errors=True) as folder:
            try:
                measurement = self._measure(Path(folder))
            except TooShort as error:
                told = f"speed could not be measured: {error}"
                return Judgement(self._job, Gated.ERROR, told, report, speed_note=told)
            except RunFailed as failed:
                return self._failed(report, failed)
        return self._by_speed(report, measurement)

    def _verify_settings(self) -> VerifySettings:
        return VerifySettings(
            python=self._limits.python,
            cwd=self._limits.cwd,
            tier=self._job.tier,
            steps=self._job.steps,
            epoch_seconds=self._job.epoch_seconds,
            seed=self._limits.seed,
            timeout_s=self._limits.timeout_s,
            timing_seconds=TIMED_SECONDS,
            measure_speed=False,
            emulated_gpus=1 if self._job.emulated else 0,
            env=self._job.env,
        )

    def _unequal(self, report: VerificationReport) -> Judgement | None:
        verdict = report.verdict
        if verdict is None:
            failure = report.original_failure
            details = failure.details if failure else ""
            where = "on emulated CUDA: " if self._job.emulated else ""
            hint = input_hint(details, self._job.before.entry)
            told = f"{where}{said_last(details) or 'no traceback'}{hint}"
            return Judgement(self._job, Gated.ORIGINAL_FAILED, told, report, details=details)
        gated = {
            Outcome.NOT_EQUIVALENT: Gated.NOT_EQUIVALENT,
            Outcome.INCONCLUSIVE: Gated.INCONCLUSIVE,
        }.get(verdict.outcome)
        if gated is None:
            return None
        details = report.rewritten_failure.details if report.rewritten_failure else None
        note = "speed was not measured"
        return Judgement(self._job, gated, verdict.reason, report, speed_note=note, details=details)

    # -- speed

    def _measure(self, folder: Path) -> Measurement:
        settings = self._timed_settings(folder)
        versions = (self._job.before, self._job.after)
        before: list[TimedRun] = []
        after: list[TimedRun] = []
        ratios: list[float] = []
        pairs = FIRST_PAIRS
        while len(before) < pairs:
            number = len(before)
            self._progress(f"both versions, timed, {number + 1} of {pairs}")
            place = folder / f"pair{number}"
            made = time_side_by_side(versions, settings, place, run, backwards=number % 2 == 1)
            shutil.rmtree(place, ignore_errors=True)
            before.append(made[0])
            after.append(made[1])
            ratios += log_speedups(before[-1:], after[-1:])
            if len(ratios) >= FIRST_PAIRS:
                needed = pairs_needed(ratios, self._job.minimum, self._job.expected)
                pairs = min(needed, max(self._limits.pairs, FIRST_PAIRS))
        return compare_speeds(before, after)

    def _timed_settings(self, folder: Path) -> RunSettings:
        """Runs that take about :data:`TIMED_SECONDS`, by a first one that nobody counts."""
        self._progress("original, for its pace")
        return settings_by_pace(
            self._verify_settings(),
            self._job.before,
            folder / "compiled",
            lambda version, how: run(version, how, folder / "pace"),
        )

    def _failed(self, report: VerificationReport, failed: RunFailed) -> Judgement:
        """A version failed when it was timed, though not under observation."""
        original = failed.version is self._job.before
        details = failed.seen.failure_details
        last = said_last(details) or "no traceback"
        gated = Gated.ORIGINAL_FAILED if original else Gated.NOT_EQUIVALENT
        told = f"{'' if original else 'the rewritten script fails '}when timed: {last}"
        return Judgement(self._job, gated, told, report, details=details)

    def _by_speed(self, report: VerificationReport, measurement: Measurement) -> Judgement:
        speedup, minimum = measurement.speedup, self._job.minimum
        if speedup.low >= minimum:
            return Judgement(self._job, Gated.PASSED, _reason(report), report, measurement)
        phases = self._phases(self._steps_to_profile(measurement))
        told = f"{speedup} does not reach {minimum:.2f}x"
        if speedup.high >= minimum:
            told = f"{speedup} is too noisy to tell whether it reaches {minimum:.2f}x"
        if phases and phases[0].after > phases[0].before:
            told += f"; most of what is lost is in {phase_words(phases[0])}"
        return Judgement(self._job, Gated.TOO_SLOW, told, report, measurement, phases=phases)

    def _steps_to_profile(self, measurement: Measurement) -> int:
        """As many as have evaluations among them, where the timed runs had."""
        versions = (measurement.original, measurement.rewritten)
        apart = max(version.interlude_rounds or 0.0 for version in versions)
        return max(self._job.steps, FEWEST_PROFILED, math.ceil(PROFILED_INTERLUDES * apart))

    def _phases(self, steps: int) -> tuple[PhaseChange, ...]:
        """The phases of both versions, profiled one after the other; none where they cannot be."""
        found: list[StepProfile] = []
        for version, which in ((self._job.before, "original"), (self._job.after, "rewritten")):
            self._progress(f"{which}, profiled")
            settings = ProfileSettings(
                python=self._limits.python,
                cwd=self._limits.cwd,
                steps=steps,
                seed=self._limits.seed,
                timeout_s=self._limits.timeout_s,
                env=self._job.env,
                resident=False,
            )
            try:
                found.append(profile(version, settings))
            except (TorchoptError, ScriptFailed):
                return ()
        changes = [PhaseChange(p, *(one.seconds(p) for one in found)) for p in Phase]
        changes = [change for change in changes if change.before or change.after]
        return tuple(sorted(changes, key=lambda change: change.before - change.after))


def phase_words(change: PhaseChange) -> str:
    """``data wait: 1.2 ms -> 3.4 ms per step``."""
    before, after = (f"{seconds * 1e3:.3g} ms" for seconds in (change.before, change.after))
    return f"{phase_label(change.phase)}: {before} -> {after} per step"


def _reason(report: VerificationReport) -> str:
    assert report.verdict is not None
    return report.verdict.reason
