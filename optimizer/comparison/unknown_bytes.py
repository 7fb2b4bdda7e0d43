"""Binary files of an unknown format, of a rewrite that trains and evaluates bit for bit as the original does, and writes other bytes.

Which of them are numbers shows in runs of the original from perturbed parameters (see :mod:`.raw_numbers`). How far these take the numbers says
nothing here, as only the summing up of equal values is left to be rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..execution.observations import Observations
from ..options import Tier
from .files import compare_bytes, unseen_bytes
from .neighbours import Neighbours, Observe
from .tolerance import precision_of_losses
from .verdict import Outcome, Verdict, failed_by, only_told_differs, same_but_for_told


def alike_but_for_told(exact: Verdict, original: Observations, rewritten: Observations) -> bool:
    """Whether training and evaluation were bit for bit the same, whatever was printed and saved besides."""
    alike = exact.outcome is Outcome.EQUIVALENT and exact.precision is None
    return alike or only_told_differs(exact, original, rewritten)


def with_bytes(
    verdict: Verdict,
    original: Observations,
    repeats: Sequence[Observations],
    rewritten: Observations,
    observe: Observe,
    perturbed_runs: int,
) -> Verdict:
    """``verdict`` on a rewrite that is bit for bit the same but for what it tells, with what its other bytes mean where that is understood."""
    if (
        verdict.outcome is not Outcome.EQUIVALENT
        or unseen_bytes(original, rewritten, repeats) is None
    ):
        return verdict
    precision = precision_of_losses(original, rewritten)
    near = Neighbours(observe, precision, 0).perturbed(perturbed_runs)
    found = compare_bytes(original, rewritten, repeats, near, precision)
    failures = [finding for finding in found if finding.fails]
    if failures:
        return failed_by(verdict, failures[0])
    if found:
        return replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=found[0].message)
    reason = same_but_for_told(original, precision)
    return replace(verdict, tier=Tier.NUMERIC, precision=precision, reason=reason)
