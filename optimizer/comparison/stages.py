"""Which runs a verdict needs, in stages, none more than it takes.

1. The original again (a third time where it does not repeat itself), for the exact tier.
2. Where the rewrite differs and uses a reduced precision: both versions with that switched off. What is left must be
   the original's arithmetic; this sees through rounding that would hide a mistake.
3. The original from perturbed parameters, for the numeric tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..execution.observations import Observations
from ..execution.runner import Perturbation
from ..options import Tier
from .findings import Kind
from .process import ENDED_WELL
from .tolerance import Precision, coarsest, perturbation_scale
from .verdict import (
    Outcome,
    Verdict,
    as_semantic,
    judge_conduct,
    judge_exact,
    judge_numeric,
    repeats_itself,
)

DECISIVE = frozenset(
    {
        Kind.EXIT_STATUS,
        Kind.TIME_LIMIT,
        Kind.RESOURCE_LIMIT,
        Kind.RANKS,
        Kind.MISSING_OBSERVATION,
        Kind.INITIAL_PARAMETERS,
        Kind.OPTIMIZER_SETTINGS,
        Kind.SAMPLES,
        Kind.SAMPLE_ORDER,
        Kind.WORKER_RANDOMNESS,
        Kind.EVALUATION_MODE,
        Kind.SCHEDULER_STEPS,
        Kind.CHECKPOINT_KEYS,
        Kind.CHECKPOINT_SHAPE,
        Kind.CHECKPOINT_DTYPE,
    }
)
"""Kinds that no rounding explains: once seen, no further run is needed."""


class Observe(Protocol):
    """Runs one of the two versions under observation; ``description`` is for the progress display."""

    def __call__(
        self,
        description: str,
        *,
        original: bool,
        perturb: Perturbation | None = None,
        full_precision: bool = False,
        runs_to_come: int = 0,
    ) -> Observations: ...


@dataclass(frozen=True)
class Equivalence:
    """The verdict, and the one on the rewrite with its reduced precision switched off, where that was judged."""

    verdict: Verdict
    same_arithmetic: Verdict | None = None


def judge_in_stages(
    first: Observations,
    rewritten: Observations,
    observe: Observe,
    *,
    tier: Tier | None,
    precision: Precision | None,
    perturbed_runs: int,
) -> Equivalence:
    """Judge ``rewritten`` against the original's ``first`` run, with further runs from ``observe``.

    ``tier`` is the one claimed, None for the strictest that holds; ``precision`` None is taken from the runs.
    """
    repeats = [observe("original, again", original=True)]
    if not repeats_itself(first, repeats[0]):
        repeats.append(observe("original, a third time", original=True))
    exact = judge_exact(first, repeats, rewritten)
    if exact.outcome is Outcome.EQUIVALENT or tier is Tier.EXACT:
        found = Equivalence(exact)
    elif _decided(exact):
        added_up = rewritten.ranks and rewritten.status in ENDED_WELL
        found = Equivalence(judge_conduct(first, repeats, rewritten) if added_up else exact)
    else:
        found = _judge_rounding(first, repeats, rewritten, observe, precision, perturbed_runs)
    if tier is Tier.SEMANTIC:
        return replace(found, verdict=as_semantic(found.verdict))
    return found


def _decided(verdict: Verdict) -> bool:
    return any(finding.kind in DECISIVE for finding in verdict.failures)


def _judge_rounding(
    first: Observations,
    repeats: Sequence[Observations],
    rewritten: Observations,
    observe: Observe,
    precision: Precision | None,
    perturbed_runs: int,
) -> Equivalence:
    precision = precision or precision_of(first, rewritten)
    same_arithmetic = None
    if precision.reduced:
        same_arithmetic = _judge_arithmetic(first, repeats, observe, perturbed_runs)
        if same_arithmetic and same_arithmetic.outcome is Outcome.NOT_EQUIVALENT:
            reason = f"with {precision.value} switched off, too: {same_arithmetic.reason}"
            return Equivalence(replace(same_arithmetic, reason=reason), same_arithmetic)
    perturbed = _perturbed(observe, precision, perturbed_runs)
    proven = same_arithmetic is not None and same_arithmetic.outcome is Outcome.EQUIVALENT
    verdict = judge_numeric(first, repeats, perturbed, rewritten, precision, same_arithmetic=proven)
    return Equivalence(verdict, same_arithmetic)


def _judge_arithmetic(
    first: Observations, repeats: Sequence[Observations], observe: Observe, perturbed_runs: int
) -> Verdict | None:
    """The rewrite with reduced precision switched off, against the original likewise; None if it stays on."""
    rewritten = observe("rewritten in full precision", original=False, full_precision=True)
    if rewritten.compute_dtypes:
        return None
    if first.compute_dtypes:
        first, again = (
            observe(f"original in full precision{again}", original=True, full_precision=True)
            for again in ("", ", again")
        )
        repeats = [again]
    exact = judge_exact(first, repeats, rewritten)
    if exact.outcome is Outcome.EQUIVALENT or _decided(exact):
        return exact
    perturbed = _perturbed(observe, Precision.FLOAT32, perturbed_runs, full_precision=True)
    return judge_numeric(first, repeats, perturbed, rewritten, Precision.FLOAT32)


def _perturbed(
    observe: Observe, precision: Precision, wanted: int, *, full_precision: bool = False
) -> list[Observations]:
    """Runs of the original from perturbed parameters; one that did not end well says nothing about rounding."""
    scale = perturbation_scale(precision)
    runs = [
        observe(
            f"original, perturbed by {precision.value} rounding ({number} of {wanted})",
            original=True,
            perturb=Perturbation(precision.value, number, scale),
            full_precision=full_precision,
            runs_to_come=wanted - number,
        )
        for number in range(1, wanted + 1)
    ]
    return [run for run in runs if run.status in ENDED_WELL]


def precision_of(original: Observations, rewritten: Observations) -> Precision:
    """The coarsest type that either run computes or holds its parameters in."""
    runs = (original, rewritten)
    dtypes = {info.dtype for run in runs for info in run.parameters.values()}
    return coarsest(dtypes.union(*(run.compute_dtypes for run in runs)))
