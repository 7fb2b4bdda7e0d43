"""Which findings need no further run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.comparison.decisive import is_decided
from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
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
        (6, (Finding(Kind.PARAMETER, "the bits differ", step=1),), True),
        (4, (Finding(Kind.LOSS, "", step=1), Finding(Kind.SAMPLES, "fewer", step=3)), True),
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
