"""Runs of the original that differ from it by rounding alone: how far that takes what is compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ..execution.observations import ENDED_WELL, Observations
from ..execution.runner import Perturbation
from .cancelled import cancelled, rounding_of
from .findings import Kind
from .numeric import rounding_only
from .tolerance import MARGINAL, MORE_NEIGHBOURS, Precision, perturbation_scale
from .verdict import TOLD, Verdict, judge_numeric


class Observe(Protocol):
    """Runs one of the two versions under observation; ``description`` is for the progress display."""

    def __call__(
        self,
        description: str,
        *,
        original: bool,
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
        runs_to_come: int = 0,
    ) -> Observations: ...


class Neighbours:
    """What rounding of ``precision`` does to the original: its runs from parameters perturbed ``after`` so many rounds.

    Or to its ``evaluations``, each with parameters perturbed anew, ``after`` so many calls: how far perturbed *training*
    would take them says nothing about a rewrite that trains bit for bit the same. Nor do perturbed evaluations that choose another
    epoch as the best, where those are the same. ``lent``: one of them has evaluated with the weights of the rewrite.
    """

    def __init__(
        self,
        observe: Observe,
        precision: Precision,
        after: int,
        *,
        full_precision: bool = False,
        evaluations: bool = False,
        more_digits: bool = False,
    ) -> None:
        self._observe, self._precision, self._after = observe, precision, after
        self._full_precision, self._evaluations = full_precision, evaluations
        self._more_digits = more_digits
        self._runs: list[Observations] = []
        self._made = 0
        self.lent = False

    def judge(
        self,
        first: Observations,
        repeats: Sequence[Observations],
        rewritten: Observations,
        wanted: int,
        *,
        same_arithmetic: bool = False,
    ) -> Verdict:
        """Judge with ``wanted`` perturbed runs, and where it fails by a little with more of them (see :mod:`.tolerance`)."""

        def verdict() -> Verdict:
            given = (first, repeats, self._runs, rewritten, self._precision)
            return judge_numeric(*given, same_arithmetic=same_arithmetic)

        self._perturb(wanted, wanted)
        found = verdict()
        one_way: tuple[tuple[str, float], ...] = ()
        if not self._evaluations:
            one_way = tuple(self._one_way(first))
        for _ in range(MORE_NEIGHBOURS):
            if not fails_by_a_little(found):
                break
            self._perturb(1, wanted + MORE_NEIGHBOURS, one_way)
            found = verdict()
        if not self._evaluations and _only_told(found) and rewritten.eval_calls:
            self._lend()
            found = verdict()
        return found

    def perturbed(self, count: int) -> Sequence[Observations]:
        """So many perturbed runs of the original, but for those that do not end well."""
        self._perturb(count, count)
        return self._runs

    def _one_way(self, first: Observations) -> Iterator[tuple[str, float]]:
        """The parameters whose gradient is nothing but rounding, with how large that may be where it is known."""
        sums = cancelled(first, self._precision)
        for name in sorted(rounding_only(first, self._precision)):
            size, _ = sums.get(name, (0.0, 0))
            yield name, rounding_of(size, self._precision)

    def _perturb(self, count: int, total: int, one_way: tuple[tuple[str, float], ...] = ()) -> None:
        """Make ``count`` more runs, ``total`` in all; one that does not end well says nothing about rounding."""
        perturbed = "evaluations perturbed" if self._evaluations else "perturbed"
        for number in range(self._made + 1, self._made + count + 1):
            run = self._observe(
                f"original, {perturbed} by {self._precision.value} rounding ({number} of {total})",
                original=True,
                perturb=Perturbation(
                    self._precision.value,
                    number,
                    perturbation_scale(self._precision),
                    self._after,
                    one_way,
                    self._evaluations,
                ),
                full_precision=self._full_precision,
                more_digits=self._more_digits,
                runs_to_come=total - number,
            )
            if run.status in ENDED_WELL:
                self._runs.append(run)
        self._made += count

    def _lend(self) -> None:
        """Have the original evaluate with the weights of the rewrite.

        These are within rounding of its own, as was judged: it is one more neighbour. It tells what the rewrite does where a
        rounding makes that jump (an accuracy, by a sample), and what it told before where the rewrite tells otherwise.
        """
        lender = self._observe(
            "rewritten, its weights kept",
            original=False,
            full_precision=self._full_precision,
            keep_evaluated=True,
            runs_to_come=1,
        )
        folder = lender.folder.parent if lender.folder.name.startswith("rank") else lender.folder
        run = self._observe(
            "original, evaluated with these weights",
            original=True,
            full_precision=self._full_precision,
            evaluated_with=folder,
        )
        if run.status in ENDED_WELL:
            self._runs.append(run)
            self.lent = True


def _only_told(verdict: Verdict) -> bool:
    """Whether ``verdict`` fails by nothing but what the script makes of its training and evaluations."""
    told = TOLD | {Kind.CHECKPOINT_SHAPE}  # of a list of mistakes; of weights it is decisive
    return bool(verdict.failures) and all(finding.kind in told for finding in verdict.failures)


def fails_by_a_little(verdict: Verdict) -> bool:
    """Whether ``verdict`` fails by what the luck of few samples may have done."""
    failures = verdict.failures
    return bool(failures) and all((f.beyond or math.inf) < MARGINAL for f in failures)
