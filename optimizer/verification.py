"""Run a script and its rewrite, judge whether they train alike, and measure how fast each is.

The runs, in order, none more than the verdict needs: the original twice and the rewrite once under observation
(exact tier); where they differ and the rewrite uses a reduced precision, the rewrite with that switched off, which
must do the original's arithmetic; the original from perturbed parameters (numeric tier); timing runs of both.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from .comparison.findings import Finding, Kind, by_importance
from .comparison.tolerance import Precision, coarsest, perturbation_scale
from .comparison.verdict import (
    Outcome,
    Verdict,
    as_semantic,
    judge_exact,
    judge_numeric,
    repeats_itself,
)
from .errors import ExitCode, TorchoptError
from .execution.observations import Observations, Status, Versions
from .execution.runner import Mode, Perturbation, RunSettings, ScriptVersion, run
from .measurement import Measurement, TimedRun, TooShort, measure
from .options import Tier

DECISIVE = frozenset(
    {
        Kind.EXIT_STATUS,
        Kind.MISSING_OBSERVATION,
        Kind.INITIAL_PARAMETERS,
        Kind.OPTIMIZER_SETTINGS,
        Kind.SAMPLES,
        Kind.CHECKPOINT_KEYS,
        Kind.CHECKPOINT_SHAPE,
        Kind.CHECKPOINT_DTYPE,
    }
)
"""Kinds that no rounding explains: once seen, no further run is needed."""

MOST_TIMED_ROUNDS = 200


@dataclass(frozen=True)
class VerifySettings:
    """How to verify.

    ``tier`` is the one the rewrite claims; None finds the strictest that holds. ``precision`` is the type whose
    rounding a numeric rewrite may show; None takes it from the run (autocast, TF32, the parameters' types).
    ``steps`` are rounds under observation, ``timeout_s`` seconds per run. ``pairs`` timing runs of each version, each
    of about ``timing_seconds``; ``measure_speed`` turns them off. ``perturbed_runs`` make the numeric envelope.
    """

    python: Path
    cwd: Path
    tier: Tier | None = None
    precision: Precision | None = None
    steps: int = 20
    seed: int = 0
    timeout_s: float = 600.0
    pairs: int = 3
    timing_seconds: float = 30.0
    measure_speed: bool = True
    perturbed_runs: int = 3
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` runs are over (``total`` may grow); ``description`` names the one now running."""

    done: int
    total: int
    description: str


@dataclass(frozen=True)
class ScriptFailure:
    """Why a script's own run failed: its status, exit status and traceback (or the end of its stderr)."""

    status: Status
    exit_code: int | None
    details: str


@dataclass(frozen=True)
class VerificationReport:
    """Everything a verification came to.

    ``verdict`` is None when the original itself failed (``original_failure``). ``same_arithmetic`` is the verdict on
    the rewrite with its reduced precision switched off, where there was such a comparison. ``measurement`` is None
    when nothing was timed; ``speed_note`` says why.
    """

    original: ScriptVersion
    rewritten: ScriptVersion
    settings: VerifySettings
    versions: Versions | None
    observed_steps: int
    runs: int
    verdict: Verdict | None = None
    same_arithmetic: Verdict | None = None
    original_failure: ScriptFailure | None = None
    rewritten_failure: ScriptFailure | None = None
    measurement: Measurement | None = None
    speed_note: str | None = None


def exit_code(report: VerificationReport) -> ExitCode:
    """5 when the original failed by itself, 3 when not equivalent, 1 when inconclusive, else 0."""
    if report.verdict is None:
        return ExitCode.SCRIPT_FAILED
    return {
        Outcome.EQUIVALENT: ExitCode.OK,
        Outcome.NOT_EQUIVALENT: ExitCode.NOT_EQUIVALENT,
        Outcome.INCONCLUSIVE: ExitCode.FINDINGS,
    }[report.verdict.outcome]


def verify(
    original: ScriptVersion,
    rewritten: ScriptVersion,
    settings: VerifySettings,
    progress: Callable[[Progress], None] | None = None,
) -> VerificationReport:
    """Run both versions as often as needed and say whether they are equivalent and which is faster.

    A script that fails is reported, not raised. Raises TorchoptError when there is nothing to compare: the original
    takes no optimizer step, or does not finish within the time limit.
    """
    with tempfile.TemporaryDirectory(prefix="torchopt-") as folder:
        return _Verification(original, rewritten, settings, Path(folder), progress).report()


class _OriginalFailed(Exception):
    def __init__(self, run: Observations) -> None:
        super().__init__(run.traceback)
        self.run = run


class _Verification:
    """One verification: starts runs, keeps their count, and puts the report together."""

    def __init__(
        self,
        original: ScriptVersion,
        rewritten: ScriptVersion,
        settings: VerifySettings,
        folder: Path,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._original, self._rewritten, self._settings = original, rewritten, settings
        self._folder, self._progress = folder, progress
        self._done = 0
        self._expected = 3 + (2 * settings.pairs if settings.measure_speed else 0)
        self._numbers = count()

    def report(self) -> VerificationReport:
        first: Observations | None = None
        try:
            first = self._observe_original("original")
            self._check(first)
            rewritten = self._observe(self._rewritten, "rewritten")
            verdict, same_arithmetic = self._judge(first, rewritten)
            measurement, speed_note, failure = self._speed(verdict, first, rewritten)
        except _OriginalFailed as failed:
            return self._base(first or failed.run, original_failure=_failure(failed.run))
        if failure is not None:
            verdict = _failed_when_timed(verdict, failure)
        elif rewritten.status not in (Status.COMPLETED, Status.STOPPED):
            failure = _failure(rewritten)
        return replace(
            self._base(first),
            verdict=verdict,
            same_arithmetic=same_arithmetic,
            rewritten_failure=failure,
            measurement=measurement,
            speed_note=speed_note,
        )

    def _base(
        self, first: Observations, original_failure: ScriptFailure | None = None
    ) -> VerificationReport:
        return VerificationReport(
            self._original,
            self._rewritten,
            self._settings,
            first.versions,
            observed_steps=first.rounds,
            runs=self._done,
            original_failure=original_failure,
        )

    # -- runs

    def _run(self, version: ScriptVersion, settings: RunSettings, description: str) -> Observations:
        self._expected = max(self._expected, self._done + 1)
        if self._progress:
            self._progress(Progress(self._done, self._expected, description))
        observations = run(version, settings, self._folder / f"run{next(self._numbers)}")
        self._done += 1
        return observations

    def _observe(
        self,
        version: ScriptVersion,
        description: str,
        *,
        perturb: Perturbation | None = None,
        full_precision: bool = False,
    ) -> Observations:
        settings = RunSettings(
            python=self._settings.python,
            cwd=self._settings.cwd,
            steps=self._settings.steps,
            seed=self._settings.seed,
            mode=Mode.OBSERVE,
            timeout_s=self._settings.timeout_s,
            perturb=perturb,
            env=self._settings.env,
            cache=self._folder / "compiled-observed",
            full_precision=full_precision,
        )
        return self._run(version, settings, description)

    def _observe_original(self, description: str, *, full_precision: bool = False) -> Observations:
        observations = self._observe(self._original, description, full_precision=full_precision)
        if observations.status in (Status.FAILED, Status.KILLED):
            raise _OriginalFailed(observations)
        return observations

    def _check(self, first: Observations) -> None:
        """Whether the original shows enough to compare anything with."""
        path, steps = self._original.entry, self._settings.steps
        if first.status is Status.TIMED_OUT:
            raise TorchoptError(
                f"only {first.rounds} of {steps} steps in {self._settings.timeout_s:g} s: "
                "ask for fewer steps or more time",
                path,
            )
        if first.rounds == 0:
            seen = "an optimizer, but no step of it" if first.optimizer_seen else "no optimizer"
            raise TorchoptError(
                f"nothing to compare: the run shows {seen}; does it train with these arguments?",
                path,
            )

    # -- equivalence

    def _judge(
        self, first: Observations, rewritten: Observations
    ) -> tuple[Verdict, Verdict | None]:
        """The verdict, and the one on the rewrite without its reduced precision where that was judged."""
        repeats = [self._observe_original("original, again")]
        if not repeats_itself(first, repeats[0]):
            repeats.append(self._observe_original("original, a third time"))
        exact = judge_exact(first, repeats, rewritten)
        tier = self._settings.tier
        decided = any(finding.kind in DECISIVE for finding in exact.failures)
        if exact.outcome is Outcome.EQUIVALENT or tier is Tier.EXACT or decided:
            return (as_semantic(exact) if tier is Tier.SEMANTIC else exact), None
        numeric, same_arithmetic = self._judge_numeric(first, repeats, rewritten)
        return (as_semantic(numeric) if tier is Tier.SEMANTIC else numeric), same_arithmetic

    def _judge_numeric(
        self, first: Observations, repeats: Sequence[Observations], rewritten: Observations
    ) -> tuple[Verdict, Verdict | None]:
        precision = self._settings.precision or _precision_of(first, rewritten)
        same_arithmetic = None
        if precision.reduced:
            same_arithmetic = self._judge_arithmetic(first, repeats)
            if same_arithmetic and same_arithmetic.outcome is Outcome.NOT_EQUIVALENT:
                reason = f"with {precision.value} switched off, too: {same_arithmetic.reason}"
                return replace(same_arithmetic, reason=reason), same_arithmetic
        perturbed = self._perturbed(precision)
        proven = same_arithmetic is not None and same_arithmetic.outcome is Outcome.EQUIVALENT
        verdict = judge_numeric(
            first, repeats, perturbed, rewritten, precision, same_arithmetic=proven
        )
        return verdict, same_arithmetic

    def _judge_arithmetic(
        self, first: Observations, repeats: Sequence[Observations]
    ) -> Verdict | None:
        """The rewrite with reduced precision switched off, against the original likewise; None if it cannot be."""
        rewritten = self._observe(
            self._rewritten, "rewritten in full precision", full_precision=True
        )
        if rewritten.compute_dtypes:
            return None
        if first.compute_dtypes:
            first = self._observe_original("original in full precision", full_precision=True)
            repeats = [
                self._observe_original("original in full precision, again", full_precision=True)
            ]
        exact = judge_exact(first, repeats, rewritten)
        decided = any(finding.kind in DECISIVE for finding in exact.failures)
        if exact.outcome is Outcome.EQUIVALENT or decided:
            return exact
        perturbed = self._perturbed(Precision.FLOAT32, full_precision=True)
        return judge_numeric(first, repeats, perturbed, rewritten, Precision.FLOAT32)

    def _perturbed(
        self, precision: Precision, *, full_precision: bool = False
    ) -> list[Observations]:
        """Runs of the original from perturbed parameters; those that did not end well say nothing about rounding."""
        runs: list[Observations] = []
        wanted = self._settings.perturbed_runs
        self._expected += wanted
        for number in range(wanted):
            perturbation = Perturbation(precision.value, number, perturbation_scale(precision))
            runs.append(
                self._observe(
                    self._original,
                    f"original, perturbed by {precision.value} rounding ({number + 1} of {wanted})",
                    perturb=perturbation,
                    full_precision=full_precision,
                )
            )
        return [run for run in runs if run.status in (Status.COMPLETED, Status.STOPPED)]

    # -- speed

    def _speed(
        self, verdict: Verdict, first: Observations, rewritten: Observations
    ) -> tuple[Measurement | None, str | None, ScriptFailure | None]:
        """The measurement, else why there is none; and how the rewrite failed when timed, if it did."""
        if not self._settings.measure_speed:
            return None, "not asked for", None
        if verdict.outcome is Outcome.NOT_EQUIVALENT:
            return (
                None,
                "not measured: the speed of a script that does something else means nothing",
                None,
            )
        rounds = self._timed_rounds(first)
        try:
            measurement = measure(
                lambda: self._time(self._original, "original, timed", rounds),
                lambda: self._time(self._rewritten, "rewritten, timed", rounds),
                self._settings.pairs,
                (_samples_per_round(first), _samples_per_round(rewritten)),
            )
        except TooShort as error:
            return None, f"not measured: {error}", None
        except _RewrittenFailed as error:
            return None, "not measured: the rewritten script failed when timed", error.failure
        return measurement, None, None

    def _timed_rounds(self, first: Observations) -> int:
        """As many rounds as take the wanted time at the pace of the observed run, at least as many as it had."""
        pace = statistics.median(first.timing.round_seconds) if first.timing.round_seconds else 0.0
        wanted = math.ceil(self._settings.timing_seconds / pace) if pace else MOST_TIMED_ROUNDS
        return max(self._settings.steps, min(wanted, MOST_TIMED_ROUNDS))

    def _time(self, version: ScriptVersion, description: str, rounds: int) -> TimedRun:
        settings = RunSettings(
            python=self._settings.python,
            cwd=self._settings.cwd,
            steps=rounds,
            seed=self._settings.seed,
            mode=Mode.TIME,
            timeout_s=self._settings.timeout_s,
            env=self._settings.env,
            block_steps=max(1, rounds // 20),
            cache=self._folder / "compiled-timed",
        )
        observations = self._run(version, settings, description)
        if observations.status in (Status.FAILED, Status.KILLED):
            if version is self._original:
                raise _OriginalFailed(observations)
            raise _RewrittenFailed(_failure(observations))
        memory = observations.memory
        return TimedRun(observations.timing, memory.device, memory.host)


class _RewrittenFailed(Exception):
    def __init__(self, failure: ScriptFailure) -> None:
        super().__init__(failure.details)
        self.failure = failure


def _precision_of(original: Observations, rewritten: Observations) -> Precision:
    dtypes = {info.dtype for run in (original, rewritten) for info in run.parameters.values()}
    return coarsest({*dtypes, *original.compute_dtypes, *rewritten.compute_dtypes})


def _failure(run: Observations) -> ScriptFailure:
    details = run.traceback or "\n".join(run.stderr.splitlines()[-20:])
    return ScriptFailure(run.status, run.exit_code, details)


def _failed_when_timed(verdict: Verdict, failure: ScriptFailure) -> Verdict:
    last = failure.details.strip().splitlines()[-1:] or ["no traceback"]
    finding = Finding(
        Kind.EXIT_STATUS,
        f"fails without the observer's hooks, where the original does not: {last[0]}",
        rewritten=failure.exit_code,
    )
    return replace(
        verdict,
        outcome=Outcome.NOT_EQUIVALENT,
        reason=f"{finding.kind.value}: {finding.message}",
        findings=by_importance((finding, *verdict.findings)),
    )


def _samples_per_round(run: Observations) -> float | None:
    """Samples of the loader that gives one batch per round; None when there is no such loader."""
    for loader in sorted({p.loader for p in run.loader_passes}):
        passes = [p for p in run.loader_passes if p.loader == loader]
        batches = sum(p.batches for p in passes)
        if run.rounds and 0.9 <= batches / run.rounds <= 1.2:
            return sum(p.samples for p in passes) / batches
    return None
