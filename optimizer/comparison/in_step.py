"""A training that rounding scatters: the rewrite beside an original that is kept in step with it.

An agent that acts otherwise once, for a rounding, sees other states from then on. So its perturbed runs earn other returns altogether, and
what they allow the rewrite is whatever it prints. But of what the *rewrite's* weights earn there is no doubt: an original whose parameters are
set to the rewrite's after every step computes the next losses, acts and evaluates as the rewrite should, but for the rounding of one step.

So where numbers are told otherwise than rounding alone explains, which neighbours have excused, both versions are run once more in step. Only what
differs there, and by more than it does where these parameters are perturbed anew in every step, is a mistake of the rewrite's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..execution.observations import ENDED_WELL, Observations
from ..execution.runner import Perturbation
from .findings import Kind
from .neighbours import Observe, fails_by_a_little
from .tolerance import MORE_NEIGHBOURS, Precision, perturbation_scale
from .verdict import Outcome, Verdict, judge_numeric, judge_told, repeats_itself

_TOLD = frozenset({Kind.STDOUT, Kind.FILE_VALUE})
"""What a script tells by numbers."""


def judge_in_step(
    verdict: Verdict,
    first: Observations,
    repeats: Sequence[Observations],
    rewritten: Observations,
    observe: Observe,
    precision: Precision,
    *,
    after: int,
    wanted: int,
    full_precision: bool = False,
) -> Verdict:
    """``verdict``, that all is within rounding, unless the original in step with the rewrite shows that it is not.

    It stands where that cannot be shown: the original does not repeat itself, or other parameters are stepped. The runs are perturbed
    ``after`` so many rounds, as the neighbours were, ``wanted`` of them unless more are needed.
    """
    if verdict.outcome is not Outcome.EQUIVALENT or precision.reduced or rewritten.ranks:
        return verdict
    if not all(repeats_itself(first, run) for run in repeats):
        return verdict
    if not _tells_otherwise(first, repeats, rewritten):
        return verdict
    lender = observe(
        "rewritten, its weights kept",
        original=False,
        full_precision=full_precision,
        keep_steps=True,
        runs_to_come=1,
    )
    folder = lender.folder
    beside = observe(
        "original, in step with it",
        original=True,
        full_precision=full_precision,
        stepped_with=folder,
        runs_to_come=wanted,
    )
    if not _in_step(beside) or not judge_numeric(beside, (), (), lender, precision).failures:
        return verdict
    runs = _InStep(observe, precision, folder, after, full_precision)
    found = runs.judge(beside, lender, wanted)
    if found.outcome is not Outcome.NOT_EQUIVALENT:
        return verdict
    reason = f"with the rewrite's weights in every step of the original: {found.reason}"
    return replace(found, reason=reason)


class _InStep:
    """Runs of the original in step with the one in ``folder``, but for a rounding error in every step."""

    def __init__(
        self,
        observe: Observe,
        precision: Precision,
        folder: Path,
        after: int,
        full_precision: bool,
    ) -> None:
        self._observe, self._precision, self._folder = observe, precision, folder
        self._after, self._full_precision = after, full_precision
        self._runs: list[Observations] = []
        self._made = 0

    def judge(self, beside: Observations, rewritten: Observations, wanted: int) -> Verdict:
        """By ``wanted`` of them, and more where it fails by a little."""
        self._perturb(wanted, wanted)
        found = judge_numeric(beside, (), self._runs, rewritten, self._precision)
        for _ in range(MORE_NEIGHBOURS):
            if not fails_by_a_little(found):
                break
            self._perturb(1, wanted + MORE_NEIGHBOURS)
            found = judge_numeric(beside, (), self._runs, rewritten, self._precision)
        return found

    def _perturb(self, count: int, total: int) -> None:
        for number in range(self._made + 1, self._made + count + 1):
            scale = perturbation_scale(self._precision)
            run = self._observe(
                f"original, in step but for {self._precision.value} rounding ({number} of {total})",
                original=True,
                perturb=Perturbation(self._precision.value, number, scale, self._after),
                full_precision=self._full_precision,
                stepped_with=self._folder,
                runs_to_come=total - number,
            )
            if _in_step(run):
                self._runs.append(run)
        self._made += count


def _tells_otherwise(
    first: Observations, repeats: Sequence[Observations], rewritten: Observations
) -> bool:
    """Whether numbers are told that are not the original's but for the rounding of one sum."""
    told = judge_told(first, repeats, rewritten)
    return any(failure.kind in _TOLD for failure in told.failures)


def _in_step(run: Observations) -> bool:
    """Whether ``run`` had the weights of the rewrite in all of its steps."""
    return run.status in ENDED_WELL and run.steps_lent > 0
