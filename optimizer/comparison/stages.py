"""Which runs a verdict needs, in stages, none more than it takes.

1. The original again (a third time where it does not repeat itself, and then as often as it takes), for the exact tier. Where all but what is printed
   and saved besides is bit for bit the same, that is judged at once, numbers that are printed otherwise by the digits behind, too.
2. Where the rewrite differs and uses a reduced precision: both versions with that switched off. What is left must be
   the original's arithmetic; this sees through rounding that would hide a mistake.
3. The original from perturbed parameters, for the numeric tier. They are perturbed no earlier than the rewrite parts from it:
   what rounding has done by then in a run that is bit for bit the same says nothing about a mistake that comes later. More of
   them where the rewrite is beyond its limits by a little. Where nothing but what is printed or saved besides fails, the original
   evaluated with the weights of the rewrite, too: what jumps with a rounding is told alike then.

Of a rewrite that runs as several ranks, whose layers see shares of a batch, the rewrite once more with these layers
aligned is what the second and third stage judge; where there is dropout, against the original without any, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..execution.observations import ENDED_WELL, Loss, Observations
from ..options import Tier
from .arithmetic import judge_arithmetic
from .backward_places import Gathering, losses_in_place, moved_note
from .clipping import unseen_clipping
from .decisive import for_sure, is_decided
from .divided import Division
from .evaluation_order import in_order_of
from .files import unseen_bytes
from .findings import Finding, Kind, step_number
from .hand_stepped import by_hand_note, told_by_hand
from .in_step import judge_in_step
from .layer_settings import unseen_settings
from .masks import resized
from .neighbours import Neighbours, Observe, fails_by_a_little
from .onset import calls_alike, rounds_alike
from .ranks import layers_per_rank
from .regrouped import regrouped, regrouping_note
from .renamed import Renaming
from .scheduling import unseen_schedule
from .skipped_steps import unseen_overflow
from .successors import Succession
from .told_digits import judge_digits
from .tolerance import MORE_NEIGHBOURS, Precision, precision_of
from .unknown_bytes import alike_but_for_told, with_bytes
from .verdict import (
    Outcome,
    Verdict,
    as_semantic,
    failed_by,
    judge_conduct,
    judge_exact,
    judge_told,
    only_evaluation_differs,
    only_told_differs,
    repeats_itself,
)


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
    renaming = Renaming.of(first, rewritten)
    division = Division.of(first, renaming.undone(rewritten))
    renamed = division.undone(renaming.undone(rewritten))
    succession = Succession.of(first, renamed)
    first, renamed = succession.told(first), succession.told(renamed)
    gathering = Gathering.of(first, renamed)
    first, renamed = gathering.told(first), gathering.told(renamed)
    observe = _Renamed(observe, renaming, division, (succession, gathering), first)
    stepped = told_by_hand(first, renamed)
    grouped = regrouped(first, stepped)
    moved = losses_in_place(first, grouped)
    rewritten = in_order_of(first, moved)
    repeats = [observe("original, again", original=True)]
    if not repeats_itself(first, repeats[0]):
        repeats.append(observe("original, a third time", original=True))
    exact = judge_exact(first, repeats, rewritten)
    for _ in range(MORE_NEIGHBOURS):
        # By the spread of an original that does not repeat itself.
        if tier is not Tier.EXACT or not fails_by_a_little(exact):
            break
        repeats.append(observe("original, once more", original=True))
        exact = judge_exact(first, repeats, rewritten)
    if exact.outcome is Outcome.EQUIVALENT or tier is Tier.EXACT:
        found = Equivalence(exact)
    elif is_decided(exact, first, rewritten):
        added_up = rewritten.ranks and rewritten.status in ENDED_WELL
        rounding = precision or precision_of(first, rewritten)
        sure = (
            judge_conduct(first, repeats, rewritten)
            if added_up
            else for_sure(exact, first, rewritten, rounding)
        )
        found = Equivalence(sure)
    elif only_told_differs(exact, first, rewritten):
        told = judge_told(first, repeats, rewritten)
        found = Equivalence(judge_digits(told, first, repeats, rewritten, observe, perturbed_runs))
    elif layers := layers_per_rank(first, rewritten):
        given = (first, repeats, rewritten)
        found = _judge_aligned(*given, tuple(layers), observe, precision, perturbed_runs)
    elif sizes := resized(first, rewritten):
        given = (first, exact, rewritten)
        found = _judge_without_dropout(*given, sizes, observe, precision, perturbed_runs)
    else:
        found = _judge_rounding(
            first,
            repeats,
            rewritten,
            observe,
            precision,
            perturbed_runs,
            evaluations=not rewritten.ranks and only_evaluation_differs(exact, first, rewritten),
        )
    judged = _Judged(found, exact, first, repeats, rewritten, observe)
    judged = _with_other_draws(judged, tier, precision, perturbed_runs)
    found = _with_bytes(judged, tier, perturbed_runs)
    verdict = as_semantic(found.verdict) if tier is Tier.SEMANTIC else found.verdict
    unseen = _unseen(judged, bits=verdict.precision is None)
    if unseen and verdict.outcome is Outcome.EQUIVALENT:
        verdict = replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=unseen)
    told = (
        *renaming.notes(),
        *division.notes(),
        *succession.notes(),
        *gathering.notes(),
        *by_hand_note(renamed, stepped),
        *regrouping_note(stepped, grouped),
        *moved_note(grouped, moved),
    )
    findings = (*verdict.findings, *told)
    return replace(found, verdict=replace(verdict, findings=findings))


@dataclass(frozen=True)
class _Judged:
    """What was ``found`` of runs of both versions, which ``observe`` makes."""

    found: Equivalence
    exact: Verdict
    first: Observations
    repeats: Sequence[Observations]
    rewritten: Observations
    observe: Observe


def _with_bytes(judged: _Judged, tier: Tier | None, perturbed_runs: int) -> Equivalence:
    """What was found, with what other bytes mean in files that are not looked into."""
    found, first, rewritten = judged.found, judged.first, judged.rewritten
    if tier is Tier.EXACT or not alike_but_for_told(judged.exact, first, rewritten):
        return found
    given = (first, judged.repeats, rewritten, judged.observe, perturbed_runs)
    return replace(found, verdict=with_bytes(found.verdict, *given))


def _unseen(judged: _Judged, *, bits: bool) -> str | None:
    """What the rewrite does otherwise that no number which was compared would show; ``bits``: these are the same bit for bit."""
    first, rewritten = judged.first, judged.rewritten
    return (
        unseen_clipping(first, rewritten, precision_of(first, rewritten))
        or unseen_settings(first, rewritten)
        or unseen_schedule(first, rewritten)
        or unseen_overflow(first, rewritten)
        or (unseen_bytes(first, rewritten, judged.repeats) if bits else None)
    )


class _Renamed:
    """Observes runs with the rewrite's classes, parameters and optimizers told as in the original's ``first``, and both as they are told together."""

    def __init__(
        self,
        observe: Observe,
        renaming: Renaming,
        division: Division,
        of_both: tuple[Succession, Gathering],
        first: Observations,
    ) -> None:
        self._observe = observe
        self._renaming = renaming
        self._division = division
        self._of_both = of_both
        self._first = first

    def __call__(self, description: str, *, original: bool, **how: Any) -> Observations:
        run = self._observe(description, original=original, **how)
        if not original:
            run = self._division.undone(self._renaming.undone(run))
        for telling in self._of_both:
            run = telling.told(run)
        if original:
            return run
        run = regrouped(self._first, told_by_hand(self._first, run))
        run = losses_in_place(self._first, run)
        return in_order_of(self._first, run)


def _judge_aligned(
    first: Observations,
    repeats: Sequence[Observations],
    as_it_runs: Observations,
    layers: Sequence[str],
    observe: Observe,
    precision: Precision | None,
    perturbed_runs: int,
) -> Equivalence:
    """The rewrite with ``layers`` made to see the whole batch: whatever else it changes would show.

    That the ranks do as they should ``as_it_runs`` was judged before. What cannot be aligned shows nothing.
    """
    told = ", ".join(layers)
    conduct = judge_conduct(first, repeats, as_it_runs)
    if lost := _lost_loss(first, as_it_runs, f"where {told} see a rank's share of the batch"):
        return Equivalence(failed_by(conduct, lost))
    draws = bool(first.dropouts or first.noises)
    aligned = _Aligned(observe, original_too=draws)
    if draws:
        first, *repeats = (
            aligned(f"original, layers aligned{again}", original=True) for again in ("", ", again")
        )
    rewritten = aligned("rewritten, layers aligned", original=False)
    if rewritten.status not in ENDED_WELL:
        reason = f"{told}: other on each rank, and could not be aligned: {rewritten.ending}"
        return Equivalence(replace(conduct, outcome=Outcome.INCONCLUSIVE, reason=reason))
    found = _judge_rounding(first, repeats, rewritten, aligned, precision, perturbed_runs)
    where = f"with {told} aligned over all ranks"
    return _judged_apart(found, where, "as it runs, each rank has its own")


def _judge_without_dropout(
    first: Observations,
    exact: Verdict,
    as_it_runs: Observations,
    sizes: Mapping[int, int],
    observe: Observe,
    precision: Precision | None,
    perturbed_runs: int,
) -> Equivalence:
    """Both versions without dropout, whose masks are of other ``sizes`` in the rewrite."""
    if lost := _lost_loss(first, as_it_runs, "with dropout"):
        return Equivalence(failed_by(exact, lost))
    undropped = partial(observe, without_dropout=True)
    found = _judge_anew(undropped, "without dropout", None, precision, perturbed_runs).found
    pairs = ", ".join(f"{now} for {before}" for before, now in sizes.items())
    masks = f"its masks are of other sizes in the rewrite ({pairs} in the first call)"
    return _judged_apart(found, "without dropout", masks)


def _judged_apart(found: Equivalence, how: str, otherwise: str) -> Equivalence:
    """``found`` with a reason that says ``how`` the versions were judged, and what is so ``otherwise``, where they are equivalent."""
    reason = found.verdict.reason
    if found.verdict.outcome is Outcome.NOT_EQUIVALENT:
        reason = f"{how}, too: {reason}"
    else:
        reason = f"{reason} {how}; {otherwise}"
    return replace(found, verdict=replace(found.verdict, reason=reason))


def _with_other_draws(
    judged: _Judged, tier: Tier | None, precision: Precision | None, perturbed_runs: int
) -> _Judged:
    """Both versions with draws that do not hang on whether gradients are taken, where only one takes them in some calls to train, and they are equivalent then.

    Without gradients, a module that does the same in either mode may be evaluated: what it draws then, training does not. A
    generator that only makes samples for its opponent trains nothing either, but what is drawn behind it hangs on it.
    """
    first, rewritten = judged.first, judged.rewritten
    if (
        judged.found.verdict.outcome is not Outcome.NOT_EQUIVALENT
        or is_decided(judged.exact, first, rewritten)
        or rewritten.ranks
        or _without_gradients(first) == _without_gradients(rewritten)
    ):
        return judged
    anew = partial(judged.observe, training_draws=True)
    other = _judge_anew(anew, "drawing on", tier, precision, perturbed_runs)
    return other if other.found.verdict.outcome is Outcome.EQUIVALENT else judged


def _without_gradients(run: Observations) -> int:
    return sum(calls.without_gradients for calls in run.training_calls)


def _judge_anew(
    observe: Observe,
    how: str,
    tier: Tier | None,
    precision: Precision | None,
    perturbed_runs: int,
) -> _Judged:
    """Both versions as ``observe`` runs them, which is told as ``how``."""
    first, again = (observe(f"original {how}{which}", original=True) for which in ("", ", again"))
    rewritten = observe(f"rewritten {how}", original=False)
    exact = judge_exact(first, [again], rewritten)
    if (
        exact.outcome is Outcome.EQUIVALENT
        or tier is Tier.EXACT
        or is_decided(exact, first, rewritten)
    ):
        found = Equivalence(exact)
    else:
        found = _judge_rounding(first, [again], rewritten, observe, precision, perturbed_runs)
    return _Judged(found, exact, first, [again], rewritten, observe)


def _lost_loss(first: Observations, other: Observations, where: str) -> Finding | None:
    """That the loss of ``other`` is no number any more, where the original's always is."""
    lost = next((s for s in other.steps if not all(map(_finite, s.losses))), None)
    if lost is None or not all(map(math.isfinite, first.losses)):
        return None
    return Finding(Kind.NON_FINITE, f"the loss is no number {where}", step=step_number(lost))


def _finite(loss: Loss) -> bool:
    return math.isfinite(loss.value)


class _Aligned:
    """Observes runs with aligned layers: the rewrite's, and the original's where they would matter there."""

    def __init__(self, observe: Observe, *, original_too: bool) -> None:
        self._observe = observe
        self._original_too = original_too

    def __call__(
        self, description: str, *, original: bool, aligned_layers: bool = False, **how: Any
    ) -> Observations:
        aligned = aligned_layers or self._original_too or not original
        return self._observe(description, original=original, aligned_layers=aligned, **how)


def _judge_rounding(
    first: Observations,
    repeats: Sequence[Observations],
    rewritten: Observations,
    observe: Observe,
    precision: Precision | None,
    perturbed_runs: int,
    *,
    evaluations: bool = False,
) -> Equivalence:
    precision = precision or precision_of(first, rewritten)
    same_arithmetic = None
    if precision.reduced:
        same_arithmetic = judge_arithmetic(first, repeats, rewritten, observe, perturbed_runs)
        if same_arithmetic and same_arithmetic.outcome is Outcome.NOT_EQUIVALENT:
            reason = f"with {precision.value} switched off, too: {same_arithmetic.reason}"
            return Equivalence(replace(same_arithmetic, reason=reason), same_arithmetic)
    proven = same_arithmetic is not None and same_arithmetic.outcome is Outcome.EQUIVALENT
    alike = calls_alike(first, rewritten) if evaluations else None
    parts = rounds_alike(first, repeats, rewritten) if alike is None else alike
    runs = Neighbours(observe, precision, parts, evaluations=evaluations)
    verdict = runs.judge(first, repeats, rewritten, perturbed_runs, same_arithmetic=proven)
    if alike is None and not runs.lent:
        given = (verdict, first, repeats, rewritten, observe, precision)
        verdict = judge_in_step(*given, after=parts, wanted=perturbed_runs)
    return Equivalence(verdict, same_arithmetic)
