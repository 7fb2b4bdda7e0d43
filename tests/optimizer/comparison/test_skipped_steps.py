"""Steps that a GradScaler would skip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torchopt_cli.optimizer.comparison.skipped_steps import unseen_overflow
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.execution.observations import Observations
from torchopt_cli.optimizer.options import Tier

Run = Callable[..., Observations]


def test_a_step_past_the_scaler_shows_nowhere(run: Run) -> None:
    one = run()
    first, *rest = one.steps
    past = replace(one, steps=(first, *(replace(step, unguarded=True) for step in rest)))
    message = unseen_overflow(one, past)
    assert message is not None
    assert "from step 2 on only the rewrite calls optimizer.step()" in message
    assert "only the original" in (unseen_overflow(past, one) or "")
    assert unseen_overflow(past, past) is None
    verdict = judge_in_stages(
        one, past, lambda *_, **__: one, tier=Tier.EXACT, precision=None, perturbed_runs=3
    ).verdict
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, message)
