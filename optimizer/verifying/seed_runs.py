"""Runs of both versions with further seeds: see :mod:`..comparison.seeds` for what they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..comparison.findings import Finding, Kind, Severity, by_importance, note
from ..comparison.process import compare_process
from ..comparison.seeds import EndVerdict, SeedComparison, compare_seeds
from ..comparison.series import loss_turns_non_finite
from ..comparison.verdict import Outcome, Verdict
from ..execution.observations import ENDED_WELL, Observations, Status
from ..options import Tier

DEFAULT_SEEDS = 5
"""Seeds of a rewrite that changes training and is asked to: nothing else can be said for it."""


class ObserveSeed(Protocol):
    """Runs one version under observation with ``seed``."""

    def __call__(
        self, description: str, *, original: bool, seed: int, runs_to_come: int
    ) -> Observations: ...


@dataclass(frozen=True)
class SeedRuns:
    """What came of the seeds: the comparison, and what failed on the way."""

    comparison: SeedComparison
    findings: tuple[Finding, ...] = ()


def seeds_needed(verdict: Verdict, asked: int | None) -> int:
    """How many seeds to compare; 1 means none but the first.

    None are needed where the runs are bit for bit the same, or already told apart.
    """
    same = verdict.tier is Tier.EXACT and verdict.precision is None
    if verdict.outcome is Outcome.NOT_EQUIVALENT or (
        same and verdict.outcome is Outcome.EQUIVALENT
    ):
        return 1
    if asked is not None:
        return asked
    changes = verdict.tier is Tier.SEMANTIC and verdict.outcome is Outcome.INCONCLUSIVE
    return DEFAULT_SEEDS if changes else 1


def run_seeds(
    first: tuple[Observations, Observations], seed: int, count: int, observe: ObserveSeed
) -> SeedRuns:
    """Both versions with the seeds ``seed`` to ``seed + count - 1``; ``first`` are their runs with ``seed``.

    An original that does not end well with a seed has nothing to compare with. A rewrite that fails where the original
    does not, or whose loss turns NaN or Inf, ends the runs.
    """
    runs = [(seed, *first)]
    findings: list[Finding] = []
    for number in range(1, count):
        to_come = 2 * (count - number) - 1
        original, rewritten = (
            observe(
                f"{name}, seed {seed + number} ({number + 1} of {count})",
                original=is_original,
                seed=seed + number,
                runs_to_come=to_come - (not is_original),
            )
            for name, is_original in (("original", True), ("rewritten", False))
        )
        if original.status not in ENDED_WELL:
            continue
        failed = _failures(original, rewritten, seed + number)
        findings.extend(failed)
        if any(finding.fails for finding in failed):
            break
        if rewritten.status in ENDED_WELL:
            runs.append((seed + number, original, rewritten))
    return SeedRuns(compare_seeds(runs), tuple(findings))


def _failures(original: Observations, rewritten: Observations, seed: int) -> Sequence[Finding]:
    """How the rewrite fails with a seed with which the original does not; a time limit is ours and no failure."""
    found = [*compare_process(original, rewritten), *loss_turns_non_finite(original, rewritten)]
    ours = rewritten.status is Status.TIMED_OUT
    return [
        replace(
            finding,
            message=f"with seed {seed}: {finding.message}",
            severity=Severity.NOTE if ours else finding.severity,
        )
        for finding in found
    ]


def with_seeds(verdict: Verdict, seeds: SeedRuns) -> Verdict:
    """The verdict, with what the seeds add: a failure where it ends worse, else a note."""
    comparison = seeds.comparison
    kind = Kind.END_LOSS
    if comparison.verdict is EndVerdict.WORSE:
        told = Finding(kind, comparison.reason)
    else:
        told = note(kind, comparison.reason)
    findings = by_importance((*verdict.findings, *seeds.findings, told))
    failures = [finding for finding in findings if finding.fails]
    if failures:
        reason = f"{failures[0].kind.value}: {failures[0].message}"
        return replace(verdict, outcome=Outcome.NOT_EQUIVALENT, reason=reason, findings=findings)
    if verdict.tier is Tier.SEMANTIC and verdict.outcome is Outcome.INCONCLUSIVE:
        return replace(verdict, reason=f"{verdict.reason}; {comparison.reason}", findings=findings)
    return replace(verdict, findings=findings)
