"""Whether a rewrite that computes in a reduced type computes the same as the original where nothing is rounded to that type."""

from __future__ import annotations

from collections.abc import Sequence

from ..execution.observations import ENDED_WELL, Observations
from .decisive import is_decided
from .in_step import judge_in_step
from .neighbours import Neighbours, Observe
from .onset import rounds_alike
from .tolerance import Precision
from .verdict import Outcome, Verdict, judge_exact, judge_told, only_told_differs


def judge_arithmetic(
    first: Observations,
    repeats: Sequence[Observations],
    given: Observations,
    observe: Observe,
    perturbed_runs: int,
) -> Verdict | None:
    """The rewrite in full precision against the original likewise; None if it stays in a reduced type, or one of them needs that to run.

    ``given`` is the rewrite as it runs. What it rounds by itself is its own doing and rounded here, too; but not where that makes no bit of difference
    beside autocast, as of an input that the first layer would round as well.
    """
    rewritten = observe("rewritten in full precision", original=False, full_precision=True)
    if rewritten.compute_dtypes or rewritten.status not in ENDED_WELL:
        return None
    if first.compute_dtypes:
        first, again = (
            observe(f"original in full precision{again}", original=True, full_precision=True)
            for again in ("", ", again")
        )
        repeats = [again]
        if not {first.status, again.status} <= set(ENDED_WELL):
            return None
    verdict = _judged(first, repeats, rewritten, observe, perturbed_runs)
    if verdict.outcome is not Outcome.NOT_EQUIVALENT or not rewritten.rounds_by_itself:
        return verdict
    by_autocast = observe("rewritten, rounded by autocast alone", original=False, unrounded=True)
    if judge_exact(given, [given], by_autocast).outcome is not Outcome.EQUIVALENT:
        return verdict
    rewritten = observe(
        "rewritten in full precision, rounded by nothing",
        original=False,
        full_precision=True,
        unrounded=True,
    )
    return _judged(first, repeats, rewritten, observe, perturbed_runs)


def _judged(
    first: Observations,
    repeats: Sequence[Observations],
    rewritten: Observations,
    observe: Observe,
    perturbed_runs: int,
) -> Verdict:
    exact = judge_exact(first, repeats, rewritten)
    if exact.outcome is Outcome.EQUIVALENT or is_decided(exact, first, rewritten):
        return exact
    if only_told_differs(exact, first, rewritten):
        return judge_told(first, repeats, rewritten)
    parts = rounds_alike(first, repeats, rewritten)
    runs = Neighbours(observe, Precision.FLOAT32, parts, full_precision=True)
    verdict = runs.judge(first, repeats, rewritten, perturbed_runs)
    if runs.lent:
        return verdict
    given = (verdict, first, repeats, rewritten, observe, Precision.FLOAT32)
    return judge_in_step(*given, after=parts, wanted=perturbed_runs, full_precision=True)
