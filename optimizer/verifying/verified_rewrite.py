"""A rewrite of which only what was shown to be equivalent is left.

The rewrite is verified as a whole. While it is not equivalent, the transform that makes it so is searched for
(:mod:`.bisection`), the script is rewritten again without it, and the result is verified as a whole again. A rewrite
that is *inconclusive* was not shown to be equivalent and is treated alike, unless the original compared with itself is
inconclusive too: then no transform is to blame, and nothing is kept.

A transform without which another finds nothing to do takes that one with it. Of several that are wrong only together
the one that is applied last goes. The runs of the original are made once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..comparison.verdict import Outcome
from ..errors import ExitCode, TorchoptError
from ..execution.runner import ScriptVersion
from ..execution.script_versions import original_version
from ..options import Tier
from ..pipeline.result import AppliedChange, RewrittenFile
from ..pipeline.rewrite import Rewritten
from .bisection import Names, failing_set
from .original_runs import OriginalRuns, original_runs
from .result import VerificationReport
from .settings import VerifySettings
from .verification import Progress, verify_against

if TYPE_CHECKING:
    from ..measuring.ablation import Ablation

Rewrite: TypeAlias = Callable[[frozenset[str]], Rewritten]
"""Rewrites the scripts without the transforms of these names."""

Tell: TypeAlias = Callable[[str, Progress], None]
"""Shows what is being verified, and how far that is."""

CULPRITS = 4
"""A search may take as many verifications as that many transforms cost that are wrong each by itself."""


PROCESSES = 2
"""The fewest that can disagree."""


class Ending(str, Enum):
    """How it ended. ``VERIFIED``: what is left of the rewrite was shown to be equivalent."""

    VERIFIED = "verified"
    NOTHING_LEFT = "nothing left"
    INCONCLUSIVE = "inconclusive"
    ORIGINAL_FAILED = "original failed"
    NOT_COMPARED = "nothing to compare"


@dataclass(frozen=True)
class RolledBack:
    """A transform that was taken out of a rewrite.

    ``report`` is on the script with ``transform`` and those of ``together_with`` alone, without any of which it would be
    equivalent. ``changes`` are those of ``transform``, each with the original's lines it is about. The transforms
    ``dependent`` found nothing to do without it.
    """

    transform: str
    together_with: Names
    report: VerificationReport
    changes: tuple[tuple[AppliedChange, tuple[str, ...]], ...]
    dependent: Names = ()

    @property
    def outcome(self) -> Outcome:
        return self.report.verdict.outcome if self.report.verdict else Outcome.INCONCLUSIVE


@dataclass(frozen=True)
class VerifiedRewrite:
    """What is left of the rewrite of ``scripts`` (unchanged files unless ``ending`` is VERIFIED).

    ``reports`` are the last ones on a rewrite as a whole, one per script that it changes, up to the first that is not
    equivalent. ``runs`` and ``verifications`` were made in all. ``gave_up`` says that the search was ended by its limit,
    so that more than what is wrong may be missing. ``ablations`` tell what each transform buys, where that was asked for.
    ``error`` says why there was nothing to compare.
    """

    scripts: tuple[Path, ...]
    rewritten: Rewritten
    reports: tuple[VerificationReport, ...]
    ending: Ending
    rolled_back: tuple[RolledBack, ...]
    runs: int
    verifications: int
    gave_up: bool = False
    ablations: tuple[Ablation, ...] = ()
    error: TorchoptError | None = None


def exit_code(result: VerifiedRewrite) -> ExitCode:
    """0 when verified, even if something was rolled back; 5, 3, 2 or 1 when the original stays as it is."""
    if result.ending is Ending.VERIFIED:
        return ExitCode.OK
    if result.error is not None:
        return result.error.exit_code
    if result.ending is Ending.ORIGINAL_FAILED:
        return ExitCode.SCRIPT_FAILED
    wrong = any(item.outcome is Outcome.NOT_EQUIVALENT for item in result.rolled_back)
    return ExitCode.NOT_EQUIVALENT if wrong else ExitCode.FINDINGS


def verified_rewrite(
    rewrite: Rewrite,
    transforms: Sequence[str],
    settings: VerifySettings,
    arguments: tuple[str, ...],
    tell: Tell,
) -> VerifiedRewrite:
    """Verify what ``rewrite`` makes of its scripts, and roll back what is not equivalent. Nothing is written.

    ``transforms`` are all there are, in the order they are applied. ``arguments`` are the scripts'. The tier in
    ``settings`` does not matter: a rewrite is judged by the highest of its changes. Raises TorchoptError when there is
    nothing to compare.
    """
    with ExitStack() as stack:
        return _Search(rewrite, transforms, settings, arguments, tell, stack).result()


class _GaveUp(Exception):
    pass


class _Search:
    def __init__(
        self,
        rewrite: Rewrite,
        transforms: Sequence[str],
        settings: VerifySettings,
        arguments: tuple[str, ...],
        tell: Tell,
        stack: ExitStack,
    ) -> None:
        self._rewrite_without, self._transforms = rewrite, tuple(transforms)
        self._settings, self._arguments = settings, arguments
        # Further seeds, unless they were asked for, never make a change of training equivalent.
        self._searching = replace(settings, measure_speed=False, seeds=settings.seeds or 1)
        self._tell, self._stack = tell, stack
        self._originals: dict[Path, OriginalRuns] = {}
        self._rewrites: dict[frozenset[str], Rewritten] = {}
        self._judged: dict[object, tuple[VerificationReport, ...]] = {}
        self._equivalent: list[Rewritten] = []
        self._rolled_back: list[RolledBack] = []
        self._runs = self._verifications = 0
        whole = self._rewrite(frozenset())
        self._scripts = tuple(result.entry for result in whole.results)
        self._total = len(self._applied(whole))
        self._limit = 1 + CULPRITS * (2 + math.ceil(math.log2(max(self._total, 1))))

    def result(self) -> VerifiedRewrite:
        ignored: frozenset[str] = frozenset()
        reports: tuple[VerificationReport, ...] = ()
        while names := self._applied(rewritten := self._rewrite(ignored)):
            reports = self._judge(rewritten, self._settings)
            outcome = _outcome(reports)
            if outcome is Outcome.EQUIVALENT:
                return self._ended(Ending.VERIFIED, rewritten, reports)
            if outcome is None:
                return self._ended(Ending.ORIGINAL_FAILED, self._nothing(), reports)
            if outcome is Outcome.INCONCLUSIVE and not self._shown_by_itself(reports[-1]):
                return self._ended(Ending.INCONCLUSIVE, self._nothing(), reports)
            if reports[-1].rewritten_failure and reports[-1].rewritten_failure.timed:
                self._searching = replace(self._searching, measure_speed=True, pairs=1)
            try:
                # Without what others do next to it, a transform may now do more than in the first rewrite.
                if self._passes(only := self._only(names)):
                    return self._ended(Ending.VERIFIED, only, self._judge(only, self._searching))
                ignored |= {self._roll_back(names, ignored)}
            except _GaveUp:
                return self._best_so_far(reports)
        return self._ended(Ending.NOTHING_LEFT, rewritten, reports)

    def _ended(
        self,
        ending: Ending,
        rewritten: Rewritten,
        reports: tuple[VerificationReport, ...],
        gave_up: bool = False,
    ) -> VerifiedRewrite:
        return VerifiedRewrite(
            self._scripts,
            rewritten,
            reports,
            ending,
            tuple(self._rolled_back),
            self._runs,
            self._verifications,
            gave_up,
        )

    def _best_so_far(self, reports: tuple[VerificationReport, ...]) -> VerifiedRewrite:
        """The limit is reached: of what was shown to be equivalent, that with the most transforms."""
        best = max(self._equivalent, key=lambda r: len(self._applied(r)), default=None)
        if best is None:
            return self._ended(Ending.NOTHING_LEFT, self._nothing(), reports, gave_up=True)
        self._limit += 1
        reports = self._judge(best, self._settings)
        if _outcome(reports) is not Outcome.EQUIVALENT:
            return self._ended(Ending.NOTHING_LEFT, self._nothing(), reports, gave_up=True)
        return self._ended(Ending.VERIFIED, best, reports, gave_up=True)

    # -- the search

    def _roll_back(self, names: Names, ignored: frozenset[str]) -> str:
        """Find the transform that goes next, of ``names``, which together are not equivalent."""
        found = failing_set(names, lambda some: not self._passes(self._only(some)))
        alone = self._only(found)
        reports = self._judge(alone, self._searching)
        guilty = found[-1]
        left = self._applied(self._rewrite(ignored | {guilty}))
        dependent = tuple(name for name in names if name != guilty and name not in left)
        self._rolled_back.append(
            RolledBack(guilty, found[:-1], reports[-1], _changes(alone, guilty), dependent)
        )
        return guilty

    def _passes(self, rewritten: Rewritten) -> bool:
        return not rewritten.changed or (
            _outcome(self._judge(rewritten, self._searching)) is Outcome.EQUIVALENT
        )

    def _shown_by_itself(self, report: VerificationReport) -> bool:
        """Whether the original, run in place of the rewrite that ``report`` is on, is found equivalent to itself."""
        settings = replace(report.settings, measure_speed=False)
        verdict = self._verify(report.original, settings, "the original against itself").verdict
        return verdict is not None and verdict.outcome is Outcome.EQUIVALENT

    # -- rewriting

    def _rewrite(self, ignored: frozenset[str]) -> Rewritten:
        if ignored not in self._rewrites:
            self._rewrites[ignored] = self._rewrite_without(ignored)
        return self._rewrites[ignored]

    def _only(self, names: Iterable[str]) -> Rewritten:
        return self._rewrite(frozenset(self._transforms) - frozenset(names))

    def _nothing(self) -> Rewritten:
        return self._only(())

    def _applied(self, rewritten: Rewritten) -> Names:
        return applied(rewritten, self._transforms)

    # -- verifying

    def _judge(
        self, rewritten: Rewritten, settings: VerifySettings
    ) -> tuple[VerificationReport, ...]:
        """The reports on the scripts that ``rewritten`` changes, up to the first that is not equivalent."""
        key = frozenset((file.path, file.text) for file in rewritten.changed)
        timed = (key, True)
        for known in ((key, settings.measure_speed), timed):
            if known in self._judged:
                return self._judged[known]
        if self._verifications >= self._limit:
            raise _GaveUp
        self._verifications += 1
        reports: list[VerificationReport] = []
        final = {file.path: file for file in rewritten.files}
        what = f"{len(self._applied(rewritten))} of {self._total} transforms"
        for result in rewritten.results:
            files = [final[file.path] for file in result.files if final[file.path].changed]
            if files:
                original = self._runs_of(result.entry).version
                version = changed_version(original, files, settings.processes)
                wanted = replace(settings, tier=claimed_tier(files))
                reports.append(self._verify(version, wanted, what))
                if _outcome(reports) is not Outcome.EQUIVALENT:
                    break
        self._judged[key, settings.measure_speed] = tuple(reports)
        if _outcome(reports) is Outcome.EQUIVALENT:
            self._equivalent.append(rewritten)
        return tuple(reports)

    def _verify(
        self, version: ScriptVersion, settings: VerifySettings, what: str
    ) -> VerificationReport:
        def tell(progress: Progress) -> None:
            self._tell(what, progress)
            self._runs += 1

        return verify_against(self._runs_of(version.entry), version, settings, tell)

    def _runs_of(self, entry: Path) -> OriginalRuns:
        if entry not in self._originals:
            original = original_version(entry, self._arguments, self._settings.processes)
            self._originals[entry] = self._stack.enter_context(original_runs(original))
        return self._originals[entry]


def claimed_tier(files: Iterable[RewrittenFile]) -> Tier:
    """The highest tier of the changes in ``files``."""
    return max((change.tier for file in files for change in file.changes), default=Tier.EXACT)


def applied(rewritten: Rewritten, transforms: Sequence[str]) -> Names:
    """Those of ``transforms`` that changed something, in their order."""
    made = {change.transform for file in rewritten.files for change in file.changes}
    return tuple(name for name in transforms if name in made)


def changed_version(
    original: ScriptVersion, files: Iterable[RewrittenFile], processes: int | None = None
) -> ScriptVersion:
    """``original`` with the changed ``files`` in the place of those on disk, started as it now has to be.

    Where torchrun has to start it, and the original it had not, that is as so many ``processes``; None: as the change says. Launched with
    a process per GPU, however many there are, it is run as :data:`PROCESSES`.
    """
    files = tuple(files)
    texts = {file.path: file.text for file in files}
    launches = [change.launch for file in files for change in file.changes if change.launch]
    given = re.search(r"--nproc-per-node[ =](\d+)", launches[0]) if launches else None
    if launches:
        needed = int(given[1]) if given else PROCESSES
        return replace(original, overrides=texts, processes=processes or needed)
    return replace(original, overrides=texts)


def _outcome(reports: Sequence[VerificationReport]) -> Outcome | None:
    """The last report's, which is that of all; None when the original failed."""
    verdict = reports[-1].verdict
    return verdict.outcome if verdict else None


def _changes(
    rewritten: Rewritten, transform: str
) -> tuple[tuple[AppliedChange, tuple[str, ...]], ...]:
    return tuple(
        (change, tuple(file.original.text.splitlines()[change.line - 1 : change.end_line]))
        for file in rewritten.files
        for change in file.changes
        if change.transform == transform
    )
