"""Classes that only have another name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.renamed import renamed_classes, with_classes
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import Observations, ParameterInfo

Run = Callable[..., Observations]


def fast(run: Observations) -> Observations:
    """``run`` as that of a script whose class ``Net`` is called ``FastNet``."""
    return with_classes(run, {"Net": "FastNet"})


def judged(original: Observations, other: Observations, run: Run) -> Verdict:
    def observe(_: str, *, perturb: object = None, **how: object) -> Observations:
        return run(perturb=1e-5, seed=3) if perturb else original

    return judge_in_stages(
        original, other, observe, tier=None, precision=None, perturbed_runs=3
    ).verdict


def test_a_class_may_be_called_otherwise(run: Run) -> None:
    verdict = judged(run(), fast(run()), run)
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = verdict.findings
    assert not told.fails
    assert "what is Net in the original is FastNet in the rewrite" in told.message


def test_mistakes_beside_another_name_are_seen(run: Run) -> None:
    verdict = judged(run(), fast(run(mistakes=("clipped",))), run)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.failures[0].kind is Kind.GRADIENT


def test_another_class_is_not_another_name(run: Run) -> None:
    original, other = run(), fast(run())
    assert renamed_classes(original, other) == {"FastNet": "Net"}
    assert renamed_classes(original, original) == {}
    wider = dict(other.parameters)
    wider["FastNet.fc2.bias"] = replace(wider["FastNet.fc2.bias"], shape=(5,))
    assert renamed_classes(original, replace(other, parameters=wider)) == {}


def test_which_of_two_alike_is_not_guessed(run: Run) -> None:
    info = ParameterInfo((2, 2), "float32", "cpu", True)
    two = replace(run(), parameters={"Actor.weight": info, "Critic.weight": info})
    others = replace(run(), parameters={"Policy.weight": info, "Value.weight": info})
    assert renamed_classes(two, others) == {}
    one = replace(run(), parameters={"Actor.weight": info, "Value.weight": info})
    assert renamed_classes(two, one) == {"Value": "Critic"}


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("Net.fc1.weight", "FastNet.fc1.weight"),
        ("optimizer 0/exp_avg/Net#2.fc1.weight", "optimizer 0/exp_avg/FastNet#2.fc1.weight"),
        ("Net", "FastNet"),
        ("Network.fc1.weight", "Network.fc1.weight"),
        ("ema.Net/fc1.weight", "ema.Net/fc1.weight"),
    ],
)
def test_only_what_begins_with_the_class_is_called_otherwise(
    run: Run, name: str, called: str
) -> None:
    caller = fast(run()).called
    assert caller is not None
    assert caller(name) == called
