"""Classes that only have another name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.renamed import Renaming, renamed_classes, with_classes
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import (
    EvalCall,
    Observations,
    ParameterInfo,
    TensorSummary,
)
from torchopt_cli.optimizer.options import Tier

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


FIRST = {"Net.fc1.weight": "Net.first.weight", "Net.fc1.bias": "Net.first.bias"}


def first(run: Observations) -> Observations:
    """``run`` as that of a script whose layer ``fc1`` is called ``first``."""
    return Renaming({}, FIRST).undone(run)


def test_a_layer_may_be_called_otherwise(run: Run) -> None:
    verdict = judged(run(), first(run()), run)
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = verdict.findings
    assert not told.fails
    assert (
        "what is Net.fc1.weight in the original is Net.first.weight in the rewrite" in told.message
    )


def test_class_and_layer_may_be_called_otherwise(run: Run) -> None:
    names = {
        name: name.replace("Net.", "FastNet.").replace("fc1", "first") for name in run().parameters
    }
    other = Renaming({}, names).undone(run())
    assert {name.partition(".")[0] for name in other.parameters} == {"FastNet"}
    assert judged(run(), other, run).outcome is Outcome.EQUIVALENT


def test_mistakes_beside_another_layer_name_are_seen(run: Run) -> None:
    verdict = judged(run(), first(run(mistakes=("clipped",))), run)
    assert verdict.failures[0].kind is Kind.GRADIENT


def test_another_start_is_not_another_name(run: Run) -> None:
    other = first(run())
    start, *later = other.snapshots
    start = replace(start, file=None, hashes={**start.hashes, "Net.first.weight": "another"})
    verdict = judged(run(), replace(other, snapshots=(start, *later)), run)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.failures[0].kind is Kind.INITIAL_PARAMETERS


@pytest.mark.parametrize(
    ("theirs", "name", "ours"),
    [
        (
            "Net.lstm.weight_l0",
            "optimizer 0/exp_avg/Net.lstm.weight_l0",
            "optimizer 0/exp_avg/Net.cell.weight",
        ),
        (
            "Net.parts.0.fc.weight",
            "Net.parts.0.norm.running_mean",
            "Net.blocks.0.norm.running_mean",
        ),
        ("Net.parts.0.fc.weight", "Net.parts.1.fc.bias", "Net.blocks.1.fc.bias"),
        ("FastNet.fc.weight", "FastNet", "Net"),
        ("Net.first.weight", "Net", "Net"),
        ("Net.first.weight", "Net.first2.weight", "Net.first2.weight"),
        ("Net.first.weight", "ema.shadow/first.weight", "ema.shadow/first.weight"),
    ],
)
def test_what_lies_beside_a_parameter_goes_with_it(
    run: Run, theirs: str, name: str, ours: str
) -> None:
    originals = {
        "Net.lstm.weight_l0": "Net.cell.weight",
        "Net.parts.0.fc.weight": "Net.blocks.0.fc.weight",
        "FastNet.fc.weight": "Net.fc.weight",
        "Net.first.weight": "Net.fc1.weight",
    }
    called = Renaming({}, {theirs: originals[theirs]}).undone(run()).called
    assert called is not None
    assert called(name) == ours


def evaluated(run: Observations, module: str, *samples: int) -> Observations:
    """``run`` with calls of ``module`` in eval mode after its first round."""
    calls = tuple(EvalCall(module, 1, count, ()) for count in samples)
    return replace(run, eval_calls=calls)


def test_a_part_may_be_evaluated_for_the_whole(run: Run) -> None:
    original = evaluated(run(), "Net", 4, 2)
    verdict = judged(original, evaluated(run(), "Sequential", 4, 2), run)
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = verdict.findings
    assert told.message == "where the original evaluates Net, the rewrite evaluates Sequential"


def exactly(original: Observations, other: Observations) -> Verdict:
    def observe(_: str, **how: object) -> Observations:
        return original

    return judge_in_stages(
        original, other, observe, tier=Tier.EXACT, precision=None, perturbed_runs=3
    ).verdict


def test_a_part_evaluated_on_less_is_another_evaluation(run: Run) -> None:
    verdict = exactly(evaluated(run(), "Net", 4, 2), evaluated(run(), "Sequential", 4))
    assert verdict.failures[0].kind is Kind.EVALUATION


def test_what_the_part_gives_is_compared(run: Run) -> None:
    def giving(module: str, checksum: int) -> Observations:
        output = TensorSummary((4, 2), "float32", checksum, 0.5, 2.0, 1.0, True)
        (call,) = evaluated(run(), module, 4).eval_calls
        return replace(run(), eval_calls=(replace(call, outputs=(output,)),))

    assert not exactly(giving("Net", 1), giving("Sequential", 1)).failures
    verdict = exactly(giving("Net", 1), giving("Sequential", 2))
    assert verdict.failures[0].kind is Kind.EVALUATION_OUTPUT
