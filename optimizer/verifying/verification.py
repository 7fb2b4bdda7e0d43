"""Run a script and its rewrite, judge whether they train alike, and measure how fast each is.

The runs, in order, none more than the verdict needs: the original twice and the rewrite once under observation
(exact tier); where they differ and the rewrite uses a reduced precision, the rewrite with that switched off, which
must do the original's arithmetic; the original from perturbed parameters (numeric tier); both with further seeds (where
training is changed, or when asked for); timing runs of both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..comparison.by_rank import judge_each_rank
from ..comparison.findings import Finding, Kind, by_importance, note
from ..comparison.hand_stepped import stepped_by_hand
from ..comparison.stages import Equivalence, judge_in_stages
from ..comparison.verdict import Outcome, Verdict
from ..errors import TorchoptError
from ..execution.observations import (
    ENDED_WELL,
    STEPPED_ELSEWHERE,
    Observations,
    Status,
    said_last,
)
from ..execution.ranks import batches_in_turn
from ..execution.runner import BatchLayers, Mode, Perturbation, RunSettings, ScriptVersion, run
from ..execution.shuffled_passes import shuffled_passes
from ..measuring.measurement import Measurement, TimedRun, TooShort, measure
from ..measuring.timed_runs import RunFailed, time_side_by_side
from ..measuring.timing_settings import settings_by_pace
from .changed_defaults import changed_defaults, changed_defaults_note, without_defaults
from .original_runs import OriginalRuns, original_runs
from .reach import reach_of
from .result import ScriptFailure, Seen, VerificationReport
from .seed_runs import SeedRuns, run_seeds, seeds_needed, with_seeds
from .settings import VerifySettings


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` runs are over (``total`` may grow); ``description`` names the one now running."""

    done: int
    total: int
    description: str


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
    with original_runs(original) as runs:
        return verify_against(runs, rewritten, settings, progress)


def verify_against(
    original: OriginalRuns,
    rewritten: ScriptVersion,
    settings: VerifySettings,
    progress: Callable[[Progress], None] | None = None,
) -> VerificationReport:
    """As :func:`verify`, with the runs of the original that ``original`` already has.

    Several rewrites can be judged one after the other against the same runs. Speeds are measured anew each time.
    """
    if settings.emulated_gpus:
        gpus = max(settings.emulated_gpus, rewritten.processes or 1)
        settings = replace(settings, emulated_gpus=gpus)
    with tempfile.TemporaryDirectory(prefix="torchopt-", ignore_cleanup_errors=True) as folder:
        return _Verification(original, rewritten, settings, Path(folder), progress).report()


class _OriginalFailed(Exception):
    def __init__(self, run: Observations) -> None:
        super().__init__(run.traceback)
        self.run = run


class _Verification:
    """One verification: starts runs, keeps their count, and puts the report together."""

    def __init__(
        self,
        runs: OriginalRuns,
        rewritten: ScriptVersion,
        settings: VerifySettings,
        folder: Path,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._runs, self._original = runs, runs.version
        self._rewritten, self._settings = rewritten, settings
        self._folder, self._progress = folder, progress
        self._changed_defaults = changed_defaults(self._original, rewritten)
        self._asked: list[RunSettings] = []
        self._first: Observations | None = None
        self._steps = settings.steps
        self._cut_short: tuple[Finding, ...] = ()
        self._done = 0
        self._timing_runs = 1 + 2 * settings.pairs if settings.timed else 0
        self._expected = 3 + self._timing_runs

    def report(self) -> VerificationReport:
        first: Observations | None = None
        try:
            first = self._first = self._first_run()
            rewritten = self._observe("rewritten", original=False)
            found = self._judged(first, rewritten)
            notes = (*changed_defaults_note(self._changed_defaults), *self._cut_short)
            verdict = replace(found.verdict, findings=(*found.verdict.findings, *notes))
            verdict = _unless_blind(verdict, first, rewritten)
            seeds = self._seeds(verdict, first, rewritten)
            if seeds is not None:
                verdict = with_seeds(verdict, seeds)
            measurement, speed_note, failure = self._speed(verdict, first, rewritten)
        except _OriginalFailed as failed:
            return self._base(first or failed.run, original_failure=_failure(failed.run))
        if failure is not None:
            verdict = _failed_when_timed(verdict, failure)
        elif rewritten.status not in ENDED_WELL:
            failure = _failure(rewritten)
        return replace(
            self._base(first),
            verdict=verdict,
            same_arithmetic=found.same_arithmetic,
            rewritten_failure=failure,
            measurement=measurement,
            speed_note=speed_note,
            seeds=seeds.comparison if seeds else None,
        )

    def _judged(self, first: Observations, rewritten: Observations) -> Equivalence:
        judge = partial(
            judge_in_stages,
            tier=self._settings.tier,
            precision=self._settings.precision,
            perturbed_runs=self._settings.perturbed_runs,
        )
        if first.ranks and rewritten.ranks:
            return judge_each_rank(first, rewritten, self._observe, judge)
        return judge(first, rewritten, self._observe)

    def _seeds(
        self, verdict: Verdict, first: Observations, rewritten: Observations
    ) -> SeedRuns | None:
        """Both versions with further seeds, where the verdict needs them."""
        count = seeds_needed(verdict, self._settings.seeds)
        if count < 2 or rewritten.status not in ENDED_WELL:
            return None
        return run_seeds((first, rewritten), self._settings.seed, count, self._observe)

    def _base(
        self, first: Observations, original_failure: ScriptFailure | None = None
    ) -> VerificationReport:
        return VerificationReport(
            self._original,
            self._rewritten,
            self._settings,
            first.versions,
            seen=Seen.of(first),
            runs=self._done,
            original_failure=original_failure,
        )

    # -- runs

    def _run(
        self, version: ScriptVersion, settings: RunSettings, description: str, folder: Path
    ) -> Observations:
        if self._progress:
            self._progress(Progress(self._done, self._expected, description))
        return run(version, settings, folder)

    def _first_run(self) -> Observations:
        """The original's first run, which says how many rounds all others have."""
        settings = self._settings
        if settings.epoch_seconds:
            seen = self._observe("original", original=True, epoch_seconds=settings.epoch_seconds)
            reach = reach_of(seen, settings.steps, settings.epoch_seconds)
            self._steps, self._cut_short = reach.steps, reach.notes
            if reach.seen_whole:
                return seen
        return self._observe("original", original=True)

    def _observe(
        self,
        description: str,
        *,
        original: bool,
        epoch_seconds: float = 0.0,
        perturb: Perturbation | None = None,
        full_precision: bool = False,
        unrounded: bool = False,
        aligned_layers: bool = False,
        without_dropout: bool = False,
        training_draws: bool = False,
        more_digits: bool = False,
        keep_evaluated: bool = False,
        evaluated_with: Path | None = None,
        keep_steps: bool = False,
        stepped_with: Path | None = None,
        seed: int | None = None,
        runs_to_come: int = 0,
    ) -> Observations:
        """A run under observation; the original failing ends it all, but for perturbed runs, those in full precision or with weights of the rewrite, and further seeds."""
        self._expected = max(self._expected, self._done + 1 + runs_to_come + self._timing_runs)
        settings = replace(
            self._observing(),
            epoch_seconds=epoch_seconds,
            seed=self._settings.seed if seed is None else seed,
            perturb=perturb,
            keep_evaluated=keep_evaluated,
            evaluated_with=evaluated_with,
            keep_steps=keep_steps,
            stepped_with=stepped_with,
            full_precision=full_precision,
            unrounded=unrounded,
            batch_layers=self._batch_layers(aligned_layers),
            without_dropout=without_dropout,
            training_draws=training_draws,
            more_digits=more_digits,
        )
        if not original and self._first is not None:
            settings = replace(
                settings,
                shuffled=shuffled_passes(self._first),
                until_next=stepped_by_hand(self._first),
            )
        version = self._original if original else self._rewritten

        def start(folder: Path) -> Observations:
            return self._run(version, settings, description, folder)

        if original:
            observations = self._runs.observed(settings, self._asked.count(settings), start)
            self._asked.append(settings)
        else:
            observations = start(self._folder / f"run{self._done}")
            if self._first is not None and not self._first.ranks:
                observations = batches_in_turn(observations, self._first)
        self._done += 1
        observations = without_defaults(observations, self._changed_defaults)
        failed = observations.status in (Status.FAILED, Status.KILLED)
        went_on = epoch_seconds and observations.rounds >= self._settings.steps
        altered = evaluated_with is not None or stepped_with is not None or full_precision
        if original and perturb is None and not altered and seed is None and not went_on:
            if failed:
                raise _OriginalFailed(observations)
            self._check(observations)
        return observations

    def _observing(self) -> RunSettings:
        """What all observed runs have in common."""
        return RunSettings(
            python=self._settings.python,
            cwd=self._settings.cwd,
            steps=self._steps,
            mode=Mode.OBSERVE,
            timeout_s=self._settings.timeout_s,
            memory_limit=self._settings.memory_limit,
            disk_limit=self._settings.disk_limit,
            env=self._settings.env,
            cache=self._runs.compiled,
            emulated_gpus=self._settings.emulated_gpus,
        )

    def _batch_layers(self, aligned: bool) -> BatchLayers | None:
        """Of a rewrite for several processes of what is one: of two that are, each rank has its like."""
        if self._rewritten.processes is None or (self._first is not None and self._first.ranks):
            return None
        return BatchLayers.ALIGN if aligned else BatchLayers.WATCH

    def _check(self, first: Observations) -> None:
        """Whether the original shows enough to compare anything with."""
        path, steps = self._original.entry, self._settings.steps
        if first.exceeded is not None:
            raise TorchoptError(
                f"nothing to compare: ended after {first.rounds} of {steps} steps, {first.ending}",
                path,
            )
        if first.rounds == 0 and STEPPED_ELSEWHERE in first.unobserved:
            raise TorchoptError(f"nothing to compare: {STEPPED_ELSEWHERE} are not observed", path)
        if first.rounds == 0:
            seen = "an optimizer, but no step of it" if first.optimizer_seen else "no optimizer"
            raise TorchoptError(
                f"nothing to compare: the run shows {seen}; does it train with these arguments?",
                path,
            )

    # -- speed

    def _speed(
        self, verdict: Verdict, first: Observations, rewritten: Observations
    ) -> tuple[Measurement | None, str | None, ScriptFailure | None]:
        """The measurement, else why there is none; and how the rewrite failed when timed, if it did."""
        if not self._settings.measure_speed:
            return None, "not asked for", None
        if self._settings.emulated_gpus:
            return None, "not measured: an emulated device tells nothing of a real one's", None
        if rewritten.status not in ENDED_WELL:
            return None, "not measured: the rewritten script did not finish", None
        if verdict.outcome is Outcome.NOT_EQUIVALENT:
            return (
                None,
                "not measured: the speed of a script that does something else means nothing",
                None,
            )
        try:
            settings = self._timed_settings()
            measurement = measure(
                lambda backwards: self._time(settings, backwards),
                self._settings.pairs,
                (samples_per_round(first), samples_per_round(rewritten)),
            )
        except TooShort as error:
            return None, f"not measured: {error}", None
        except RunFailed as failed:
            if failed.version is self._original:
                raise _OriginalFailed(failed.seen) from None
            failure = replace(_failure(failed.seen), timed=True)
            return None, "not measured: the rewritten script failed when timed", failure
        return measurement, None, None

    def _timed_settings(self) -> RunSettings:
        """How long the timed runs are."""
        folder = self._folder / "pace"
        return settings_by_pace(
            self._settings,
            self._original,
            self._folder / "compiled-timed",
            lambda version, how: self._timed_run(version, how, folder),
        )

    def _time(self, settings: RunSettings, backwards: bool) -> tuple[TimedRun, TimedRun]:
        """A pair of runs, the original's first."""
        versions, folder = (self._original, self._rewritten), self._folder / f"pair{self._done}"
        ours, theirs = time_side_by_side(
            versions, settings, folder, self._timed_run, backwards=backwards
        )
        return ours, theirs

    def _timed_run(self, version: ScriptVersion, how: RunSettings, folder: Path) -> Observations:
        self._expected = max(self._expected, self._done + 1)
        which = "original" if version is self._original else "rewritten"
        seen = self._run(version, how, f"{which}, timed", folder)
        self._done += 1
        return seen


def _unless_blind(verdict: Verdict, original: Observations, rewritten: Observations) -> Verdict:
    """Equivalence is not shown while something of a run could not be recorded."""
    unobserved = sorted({*original.unobserved, *rewritten.unobserved})
    if not unobserved or verdict.outcome is not Outcome.EQUIVALENT:
        return verdict
    told = (note(Kind.MISSING_OBSERVATION, f"could not be recorded: {what}") for what in unobserved)
    return replace(
        verdict,
        outcome=Outcome.INCONCLUSIVE,
        reason=f"part of the runs could not be recorded: {unobserved[0]}",
        findings=(*verdict.findings, *told),
    )


def _failure(run: Observations) -> ScriptFailure:
    return ScriptFailure(run.status, run.exit_code, run.failure_details)


def _failed_when_timed(verdict: Verdict, failure: ScriptFailure) -> Verdict:
    last = said_last(failure.details) or "no traceback"
    finding = Finding(
        Kind.EXIT_STATUS,
        f"fails without the observer's hooks, where the original does not: {last}",
        rewritten=failure.exit_code,
    )
    return replace(
        verdict,
        outcome=Outcome.NOT_EQUIVALENT,
        reason=f"{finding.kind.value}: {finding.message}",
        findings=by_importance((finding, *verdict.findings)),
    )


def samples_per_round(run: Observations) -> float | None:
    """Samples of the loader that gives one batch per round; None when there is no such loader."""
    for loader in sorted({p.loader for p in run.loader_passes}):
        passes = [p for p in run.loader_passes if p.loader == loader]
        batches = sum(p.batches for p in passes)
        if run.rounds and 0.9 <= batches / run.rounds <= 1.2:
            return sum(p.samples for p in passes) / batches
    return None
