"""An optimizer in place of updates by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.hand_stepped import told_by_hand
from torchopt_cli.optimizer.comparison.renamed import with_names
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import Observations

Run = Callable[..., Observations]


def by_hand(run: Observations) -> Observations:
    """``run`` without its optimizer: what it does, the script does."""
    steps = [replace(step, optimizer=-1, learning_rates=()) for step in run.steps]
    return replace(run, optimizers=(), steps=tuple(steps), optimizer_state_file=None)


def judged(original: Observations, rewritten: Observations) -> Verdict:
    def observe(*_: object, **__: object) -> Observations:
        return original

    return judge_in_stages(
        original, rewritten, observe, tier=None, precision=None, perturbed_runs=3
    ).verdict


def test_an_optimizer_may_do_what_the_script_does(run: Run) -> None:
    verdict = judged(by_hand(run()), run())
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = verdict.findings
    assert (told.kind, told.fails) == (Kind.OPTIMIZER_STEPS, False)
    assert "by hand" in told.message


def nameless(run: Observations, label: str) -> Observations:
    """``run`` of a script that keeps its parameters in no module, so that they are called as the optimizer, or their shape, has them."""
    places = {name: f"{label}.{place}" for place, name in enumerate(run.parameters)}
    return with_names(run, lambda name: places.get(name, name))


def test_parameters_of_no_module_are_told_by_what_they_start_from(run: Run) -> None:
    original = nameless(by_hand(run()), "tensor")
    verdict = judged(original, nameless(run(), "optimizer0.group0"))
    assert verdict.outcome is Outcome.EQUIVALENT
    assert {finding.kind for finding in verdict.findings} == {
        Kind.OPTIMIZER_STEPS,
        Kind.INITIAL_PARAMETERS,
    }
    wrong = nameless(run(mistakes=["labels"]), "optimizer0.group0")
    assert judged(original, wrong).outcome is Outcome.NOT_EQUIVALENT


@pytest.mark.parametrize("mistake", ["rate", "frozen", "labels"])
def test_what_it_does_otherwise_is_found(run: Run, mistake: str) -> None:
    assert judged(by_hand(run()), run(mistakes=[mistake])).outcome is Outcome.NOT_EQUIVALENT


def test_optimizers_of_both_of_other_parameters_or_several_are_left(run: Run) -> None:
    original = by_hand(run())
    assert told_by_hand(run(), run()).optimizers
    (info,) = run().optimizers
    several = replace(run(), optimizers=(info, info))
    fewer = replace(run(), optimizers=(replace(info, groups=(info.groups[0][1:],)),))
    closure = replace(run(), steps=tuple(replace(step, closure=True) for step in run().steps))
    for other in (several, fewer, closure):
        assert told_by_hand(original, other) is other
