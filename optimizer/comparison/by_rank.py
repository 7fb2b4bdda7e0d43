"""A distributed script and its rewrite: each rank against the same rank of the original, as one process against another.

What ranks do together shows in each of them: gradients after their reduction, parameters, metrics that were gathered. So
nothing is allowed to one that it would not be allowed alone, and a mistake is that of the first rank that shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..execution.observations import ENDED_WELL, Observations
from ..options import Tier
from ..terminal import counted
from .decisive import DECISIVE
from .findings import Finding, Kind, by_importance
from .neighbours import Observe
from .stages import Equivalence
from .verdict import Outcome, Verdict

Judge = Callable[[Observations, Observations, Observe], Equivalence]
"""Judges one process's rewritten run against its first, with further runs."""

_FROM_BAD_TO_GOOD = (Outcome.NOT_EQUIVALENT, Outcome.INCONCLUSIVE, Outcome.EQUIVALENT)


def judge_each_rank(
    first: Observations, rewritten: Observations, observe: Observe, judge: Judge
) -> Equivalence:
    """The worst of what ``judge`` finds for the ranks of ``rewritten``; of those that are alike the first's."""
    if rewritten.status not in ENDED_WELL:
        return judge(_as_one(first), _as_one(rewritten), _Kept(observe).of(_as_one))
    ours, theirs = len(first.ranks), len(rewritten.ranks)
    if ours != theirs:
        message = f"trains in {counted(theirs, 'process')}, the original in {ours}"
        finding = Finding(Kind.RANKS, message, original=ours, rewritten=theirs)
        reason = f"{finding.kind.value}: {message}"
        verdict = Verdict(Outcome.NOT_EQUIVALENT, Tier.SEMANTIC, None, reason, (finding,))
        return Equivalence(verdict)
    kept = _Kept(observe)
    found = [
        judge(_alone(rank, first), _alone(rank, rewritten), kept.of(partial(_alone, rank)))
        for rank in range(ours)
    ]
    worst = _worst([one.verdict for one in found])
    return _told(found[worst], worst, ours)


def _worst(verdicts: Sequence[Verdict]) -> int:
    """The rank of the worst outcome; of several the one that shows a cause where the others show its consequences."""

    def badness(verdict: Verdict) -> tuple[int, bool]:
        decisive = any(finding.kind in DECISIVE for finding in verdict.failures)
        return _FROM_BAD_TO_GOOD.index(verdict.outcome), not decisive

    most = min(map(badness, verdicts))
    ranks = [rank for rank, verdict in enumerate(verdicts) if badness(verdict) == most]
    led_by = [finding for rank in ranks for finding in verdicts[rank].failures[:1]]
    if not led_by:
        return ranks[0]
    first = by_importance(led_by)[0]
    return next(rank for rank in ranks if verdicts[rank].failures[0] is first)


class _Kept:
    """Whole runs, each made once, whichever ranks ask for it."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._runs: dict[tuple[object, ...], Observations] = {}

    def of(self, part: Callable[[Observations], Observations]) -> Observe:
        """What observes ``part`` of a run."""
        asked: Counter[tuple[object, ...]] = Counter()

        def observe(description: str, *, runs_to_come: int = 0, **how: Any) -> Observations:
            key = (description, *sorted(how.items()))
            asked[key] += 1
            again = (*key, asked[key])
            if again not in self._runs:
                run = self._observe(description, runs_to_come=runs_to_come, **how)
                self._runs[again] = run
            return part(self._runs[again])

        return observe


def _told(found: Equivalence, rank: int, ranks: int) -> Equivalence:
    reason = found.verdict.reason
    equivalent = found.verdict.outcome is Outcome.EQUIVALENT
    told = f"{reason}, on each of {ranks} ranks" if equivalent else f"rank {rank}: {reason}"
    return replace(found, verdict=replace(found.verdict, reason=told if ranks > 1 else reason))


def _alone(rank: int, run: Observations) -> Observations:
    """What ``rank`` did; rank 0 also with the files, of which nobody knows which process has written them."""
    if run.status not in ENDED_WELL or rank >= len(run.ranks):
        return _as_one(run)
    own = run.ranks[rank]
    return replace(own, files=run.files, checkpoints=run.checkpoints) if rank == 0 else own


def _as_one(run: Observations) -> Observations:
    return replace(run, ranks=())
