"""Which findings need no further run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.decisive import for_sure, is_decided
from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict, judge_exact
from torchopt_cli.optimizer.execution.observations import Observations
from torchopt_cli.optimizer.options import Tier

Run = Callable[..., Observations]
NEVER_READ = Finding(Kind.SAMPLES, "loader 0, epoch 1: never read", step=5)


@pytest.mark.parametrize(
    ("rounds", "others", "decided"),
    [
        (4, (Finding(Kind.PARAMETER, "the bits differ", step=1),), False),
        (4, (), True),  # nothing else tells why it ends earlier
        (4, (Finding(Kind.PARAMETER, "the bits differ", step=5),), True),
        (4, (Finding(Kind.LOSS, "", step=4), Finding(Kind.SAMPLES, "fewer", step=3)), True),
        (4, (Finding(Kind.LOSS, "", step=1), Finding(Kind.SCHEDULER_STEPS, "", step=3)), True),
        (4, (Finding(Kind.LOSS, "", step=1), Finding(Kind.EXIT_STATUS, "fails", step=5)), True),
    ],
)
def test_that_a_run_ends_earlier_may_follow_from_its_numbers(
    run: Run, rounds: int, others: tuple[Finding, ...], decided: bool
) -> None:
    """As in a script that stops once its accuracy grows no more."""
    findings = (*others, NEVER_READ)
    verdict = Verdict(Outcome.NOT_EQUIVALENT, Tier.EXACT, None, "", findings)
    assert is_decided(verdict, run(steps=6), run(steps=rounds)) == decided


@pytest.mark.parametrize(
    ("before", "decided"),
    [
        (Finding(Kind.LOSS, "the bits differ", step=4), False),
        (Finding(Kind.EVALUATION_OUTPUT, "the bits differ", step=5), False),
        (Finding(Kind.LOSS, "the bits differ", step=5), True),
        (Finding(Kind.STDOUT, "a number", step=1), True),
    ],
)
@pytest.mark.parametrize("kind", [Kind.SAMPLES, Kind.SAMPLE_ORDER, Kind.CHECKPOINT_SHAPE])
def test_what_is_read_or_kept_may_follow_from_the_numbers_before(
    run: Run, kind: Kind, before: Finding, decided: bool
) -> None:
    """As in a script that trains on what its network is least sure of, or keeps its mistakes. Nothing is said of ranks."""
    findings = (before, Finding(kind, "loader 3, epoch 0: 1 samples fewer", step=5))
    verdict = Verdict(Outcome.NOT_EQUIVALENT, Tier.EXACT, None, "", findings)
    assert is_decided(verdict, run(steps=6), run(steps=6)) == decided
    ranks = replace(run(steps=6), ranks=(run(steps=6),))
    assert is_decided(verdict, run(steps=6), ranks)


@pytest.mark.parametrize(("perturb", "decided"), [(1e-6, False), (1e-3, True)])
def test_initial_values_that_are_another_rounding_decide_nothing(
    run: Run, perturb: float, decided: bool
) -> None:
    """As of weights that are binarized, or made orthogonal, by another sum."""
    original, other = run(), run(perturb=perturb)
    exact = judge_exact(original, [original], other)
    assert Kind.INITIAL_PARAMETERS in {f.kind for f in exact.failures}
    assert is_decided(exact, original, other) == decided


def test_initial_values_that_are_another_rounding_are_no_reason(run: Run) -> None:
    original, other = run(), run(perturb=1e-6)
    kinds = (Kind.INITIAL_PARAMETERS, Kind.EVALUATION_MODE)
    found = Verdict(
        Outcome.NOT_EQUIVALENT, Tier.EXACT, None, "", tuple(Finding(kind, "") for kind in kinds)
    )
    for start, leading in ((other, kinds[1]), (run(perturb=1e-3), kinds[0])):
        sure = for_sure(found, original, start, Precision.FLOAT32)
        assert sure.failures[0].kind is leading
