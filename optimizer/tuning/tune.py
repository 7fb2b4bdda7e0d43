"""Tune one script: profile, search, verify what won, measure it against the original."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...transforms.base import Transform
from ..errors import TorchoptError
from ..execution.observations import ENDED_WELL, Status
from ..execution.runner import RunSettings, ScriptVersion, run
from ..execution.script_versions import original_version
from ..measuring.measurement import TooShort, read_run, speedup
from ..measuring.timed_runs import RunFailed, time_side_by_side
from ..measuring.timing_settings import timed_run_settings
from ..options import AmpDtype, CompileMode, Options, Tier
from ..pipeline.rewrite import Rewritten
from ..profiling.opportunities import opportunities, usable_cores
from ..profiling.profile import ProfileSettings, ScriptFailed, profile
from ..verifying.settings import VerifySettings
from ..verifying.verification import samples_per_round
from ..verifying.verified_rewrite import Ending, VerifiedRewrite, changed_version, verified_rewrite
from .batch_sizes import for_as_many_samples, log_throughput_ratio
from .configurations import WRITTEN_BY, Configuration, Rewriter, applied, worth_trying
from .journal import Journal
from .search import Failed, NoTimeLeft, Outcome, Refused, Search, Trial
from .whole_training import log_training_speedup

TIMED_SECONDS = 6.0
FEWEST_SECONDS_A_RUN = 30.0
"""What is left of the budget ends timed runs, but not before a script can have started and made its steps."""
OBSERVED_RUNS = 10
"""As many as a verification of mixed precision makes."""
SHARE_BEFORE_SIZES = 0.5
SHARE_FOR_SEARCH = 0.7
"""Of the budget; the rest is for verifying the winner and measuring it against the original."""
_KINDS = {"workers": int, "prefetch": int, "amp": AmpDtype, "compile_mode": CompileMode}
MOST_ROUNDS = 3
"""A winner that is not equivalent is searched again without what was at fault, so many times.

Where that has a number that was chosen, it is the number of a plain rewrite that comes next, and the transform stays.
"""


@dataclass(frozen=True)
class TuneSettings:
    """How to tune: ``budget_s`` seconds for the search and the verification together, ``steps`` per observed run.

    ``batch_sizes`` are measured in the end.
    """

    verify: VerifySettings
    budget_s: float
    journal: Path
    resume: bool = False
    batch_sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tuned:
    """What tuning came to: the ``trials`` in order, and the ``verified`` winner.

    ``winner`` is what is left of it after verification. None when the script is best left as it is. ``rewritten`` is what
    is to be written, if anything: the winner, with another batch size where such a change is allowed.
    ``batch_sizes`` were measured against the winner, or the script as it is where there is none, in samples per second;
    nothing verifies them.
    """

    trials: tuple[Trial, ...]
    winner: Configuration | None
    verified: VerifiedRewrite | None
    seconds: float
    resumed: int
    rewritten: Rewritten | None = None
    batch_sizes: tuple[Trial, ...] = ()


def tune(
    script: Path,
    transforms: Sequence[Transform],
    options: Options,
    arguments: tuple[str, ...],
    settings: TuneSettings,
    tell: Callable[[str], None],
) -> Tuned:
    """Search for the fastest equivalent rewrite of ``script``; ``tell`` is told what is being done.

    Raises TorchoptError when there is nothing to measure, ScriptFailed when the script fails by itself.
    """
    return _Tuning(script, transforms, options, arguments, settings, tell).result()


class _Tuning:
    def __init__(
        self,
        script: Path,
        transforms: Sequence[Transform],
        options: Options,
        arguments: tuple[str, ...],
        settings: TuneSettings,
        tell: Callable[[str], None],
    ) -> None:
        self._script, self._arguments = script, arguments
        self._original = original_version(script, arguments, settings.verify.processes)
        self._transforms, self._options = transforms, options
        self._settings, self._tell = settings, tell
        self._rewriter = Rewriter(script, transforms, options, arguments)
        key = {
            "text": script.read_text(encoding="utf-8", errors="replace"),
            "arguments": arguments,
            "python": str(settings.verify.python),
            "options": repr(options),
            "cores": usable_cores(),
        }
        self._journal = Journal(settings.journal, key, resume=settings.resume)
        self._started = time.monotonic()
        self._share = SHARE_FOR_SEARCH if not settings.batch_sizes else SHARE_BEFORE_SIZES
        self._pace: float | None = None
        self._waits: dict[str, float] = {}
        self._samples_read: dict[str, float] = {}

    def result(self) -> Tuned:
        found = self._fastest()
        if not self._settings.batch_sizes:
            return found
        return self._with_batch_sizes(found)

    def _with_batch_sizes(self, found: Tuned) -> Tuned:
        """``found`` and the batch sizes measured against it, the best of which is taken only if the tier allows that."""
        self._share = 1.0
        if self._pace is None:
            self._profile()
        search = Search(self._pair, trial_teller(self._tell), self._waiting)
        search.best = found.winner or Configuration()
        sizes = [replace(search.best, batch_size=size) for size in self._settings.batch_sizes]
        trials = tuple(
            (
                replace(trial, outcome=Outcome.MORE_SAMPLES)
                if trial.outcome is Outcome.ADOPTED
                else trial
            )
            for trial in search.measure(sizes)
        )
        done = replace(found, batch_sizes=trials, seconds=self._seconds())
        better = [t for t in trials if t.outcome is Outcome.MORE_SAMPLES and t.speedup]
        if self._options.tier < Tier.SEMANTIC or not better:
            return done
        best = max(better, key=lambda trial: trial.speedup.factor if trial.speedup else 0.0)
        rewritten = self._rewriter.rewrite(best.candidate)
        return replace(done, winner=best.candidate, rewritten=rewritten)

    def _fastest(self) -> Tuned:
        resumed = len(self._journal)
        plain = self._rewriter.plain()
        on_request = self._rewriter.on_request()
        if not (plain.transforms or on_request or self._rewriter.waits_to_be_asked()):
            return Tuned((), None, None, self._seconds(), resumed)
        bounds, numbers = self._profile(on_request)
        trials: list[Trial] = []
        banned: frozenset[str] = frozenset()
        winner, verified, doubtful = None, None, None
        for _ in range(MOST_ROUNDS):
            search = Search(self._pair, trial_teller(self._tell), self._waiting)
            allowed = replace(plain, transforms=plain.transforms - banned)
            left = [name for name in on_request if name not in banned | allowed.transforms]
            winner = search.run(allowed, bounds.get, numbers, left)
            trials += search.trials
            doubtful = search.in_doubt
            if doubtful is not None:
                winner = doubtful.candidate
            if not winner.transforms:
                return Tuned(tuple(trials), None, None, self._seconds(), resumed)
            verified = self._verify(winner)
            guilty = {item.transform for item in verified.rolled_back}
            if not guilty:
                break
            chosen = winner.numbers_of(guilty)
            numbers = {n: values for n, values in numbers.items() if n not in chosen}
            banned |= guilty - {WRITTEN_BY[number] for number in chosen}
        assert verified is not None
        if verified.ending is not Ending.VERIFIED or not self._faster(verified, doubtful):
            return Tuned(tuple(trials), None, verified, self._seconds(), resumed)
        assert winner is not None
        left = applied(verified.rewritten, self._transforms)
        return Tuned(
            tuple(trials),
            winner.with_only(left),
            verified,
            self._seconds(),
            resumed,
            verified.rewritten,
        )

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    # -- evidence

    def _profile(
        self, on_request: Iterable[str] = ()
    ) -> tuple[dict[str, float | None], dict[str, list[Any]]]:
        """What each transform could save at most, those ``on_request`` among them, and the numbers worth trying."""
        known: dict[str, Any] | None = self._journal.get({"profile": True})
        if known is None:
            self._tell("profiling the script as it is")
            limits = self._settings.verify
            found = profile(
                self._original,
                ProfileSettings(
                    limits.python,
                    limits.cwd,
                    seed=limits.seed,
                    timeout_s=limits.timeout_s,
                    resident=False,
                ),
            )
            plain = self._rewriter.plain()
            asked = [plain, *(Configuration(frozenset({name})) for name in on_request)]
            files = [file for one in asked for file in self._rewriter.rewrite(one).files]
            changes = [change for file in files for change in file.changes]
            could = opportunities(found, changes, self._transforms, self._options.target)
            known = {
                "bounds": {one.transform: one.at_most for one in could},
                "numbers": worth_trying(self._options, found, usable_cores()),
                "pace": found.round_seconds,
            }
            self._journal.note({"profile": True}, known)
        self._pace = known["pace"]
        return known["bounds"], {
            number: [_KINDS[number](value) for value in values]
            for number, values in known["numbers"].items()
        }

    def _pair(self, best: Configuration, candidate: Configuration, number: int) -> float:
        what = {"best": best.label, "candidate": candidate.label, "pair": number}
        known = self._journal.get(what)
        if known == "failed":
            raise Failed
        if known is not None:
            ratio, self._waits[candidate.label] = known
            return ratio
        if self._seconds() > self._share * self._settings.budget_s:
            raise NoTimeLeft
        refusal = self._rewriter.refusal(best, candidate)
        if refusal is not None:
            raise Refused(refusal)
        self._tell(f"{candidate.label} against {best.label}, pair {number + 1}")
        try:
            ratio, waits = self._measured(best, candidate, backwards=number % 2 == 1)
        except Failed:
            self._journal.note(what, "failed")
            raise
        self._journal.note(what, [ratio, waits])
        self._waits[candidate.label] = waits
        return ratio

    def _measured(
        self, best: Configuration, candidate: Configuration, *, backwards: bool
    ) -> tuple[float, float]:
        """The logarithm of the speed-up in one pair of runs, and the part of its step the candidate waits for data.

        Raises NoTimeLeft where the budget ends before the runs do: an episode may go on for as long as it likes.
        """
        limits = self._settings.verify
        left = max(0.0, self._settings.budget_s - self._seconds())
        each_s = max(FEWEST_SECONDS_A_RUN, left / 2)
        timeout_s = min(limits.timeout_s, each_s)
        within = replace(limits, timing_seconds=TIMED_SECONDS, timeout_s=timeout_s)
        settings = timed_run_settings(within, self._pace or 0.0, cache=None)
        samples: tuple[float, float] | None = None
        if candidate.batch_size is not None:
            samples = self._samples(best), self._samples(candidate)
        each = [settings] * 2 if samples is None else for_as_many_samples(settings, samples)
        versions = [self._version(one) for one in (best, candidate)]
        try:
            with tempfile.TemporaryDirectory(prefix="torchopt-") as folder:
                ours, theirs = time_side_by_side(
                    versions, each, Path(folder), run, backwards=backwards
                )
            waits = read_run(theirs.timing).data_wait_share
            if samples is not None:
                return log_throughput_ratio(ours.timing, theirs.timing, samples), waits
            return log_training_speedup(ours.timing, theirs.timing, settings.steps), waits
        except RunFailed as failed:
            if failed.seen.status is Status.TIMED_OUT and timeout_s < limits.timeout_s:
                raise NoTimeLeft from None
            if failed.version is versions[0] and not best.transforms:
                raise ScriptFailed(failed.seen) from None
            raise Failed from None
        except TooShort as error:
            if samples is not None:
                raise Refused(f"nothing to measure: {error}") from None
            raise TorchoptError(f"nothing to measure: {error}", self._script) from None

    def _samples(self, configuration: Configuration) -> float:
        """How many samples a round of it reads, the last batches of its loader's passes included."""
        known = self._samples_read.get(configuration.label)
        if known is None:
            limits = self._settings.verify
            version = self._version(configuration)
            settings = RunSettings(
                limits.python,
                limits.cwd,
                steps=limits.steps,
                seed=limits.seed,
                timeout_s=limits.timeout_s,
                env=limits.env,
            )
            with tempfile.TemporaryDirectory(prefix="torchopt-") as folder:
                seen = run(version, settings, Path(folder) / "run")
            if seen.status not in ENDED_WELL:
                raise Failed
            known = samples_per_round(seen)
            if known is None:
                raise Refused("no DataLoader gives a batch a step, so samples are not counted")
            self._samples_read[configuration.label] = known
        return known

    def _waiting(self, configuration: Configuration) -> float | None:
        return self._waits.get(configuration.label)

    def _version(self, configuration: Configuration) -> ScriptVersion:
        if configuration == Configuration():
            return self._original
        rewritten = self._rewriter.rewrite(configuration)
        return changed_version(self._original, rewritten.changed, self._settings.verify.processes)

    # -- the winner

    def _verify(self, winner: Configuration) -> VerifiedRewrite:
        self._tell(f"verifying {winner.label}")

        def without(ignored: frozenset[str]) -> Rewritten:
            return self._rewriter.rewrite(winner.with_only(winner.transforms - ignored))

        names = [transform.name for transform in self._transforms]
        limits = self._settings.verify
        left = max(0.0, self._settings.budget_s - self._seconds())
        # Half of what is left for two timed runs a pair, a quarter for seeing the end of an epoch.
        seconds = max(TIMED_SECONDS, min(limits.timing_seconds, left / (4 * limits.pairs)))
        epoch = min(limits.epoch_seconds, left / (4 * OBSERVED_RUNS))
        return verified_rewrite(
            without,
            names,
            replace(limits, timing_seconds=seconds, epoch_seconds=epoch),
            self._arguments,
            lambda what, progress: self._tell(f"{what}: {progress.description}"),
        )

    @staticmethod
    def _faster(verified: VerifiedRewrite, doubtful: Trial | None) -> bool:
        """Whether what was verified was also measured not to be slower than the original.

        What is ``doubtful`` has to be shown to be faster: by the verification's pairs, or by those and its own together.
        """
        measured = [report.measurement for report in verified.reports if report.measurement]
        ratios = [ratio for one in measured for ratio in one.ratios]
        if doubtful is None or not measured:
            return bool(measured) and statistics.fmean(ratios) > 0.0
        return any(speedup(pairs).low > 1.0 for pairs in (ratios, [*doubtful.ratios, *ratios]))


def trial_teller(tell: Callable[[str], None]) -> Callable[[Trial], None]:
    """Tells ``tell`` what came of each trial of a search; of those that there is no time to begin, that there are some."""
    out_of_time = False

    def told(trial: Trial) -> None:
        nonlocal out_of_time
        if trial.outcome is not Outcome.NO_TIME or trial.ratios:
            tell(_said(trial))
        elif not out_of_time:
            out_of_time = True
            tell("no time left to try more")

    return told


def _said(trial: Trial) -> str:
    speed = f" {trial.speedup}" if trial.speedup else ""
    reason = f": {trial.reason}" if trial.reason else ""
    return f"{trial.change}: {trial.outcome.value}{speed}{reason}"
