"""Evaluations of modules of one class, in another order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.evaluation_order import in_order_of
from torchopt_cli.optimizer.execution.observations import EvalCall, Observations, TensorSummary

Run = Callable[..., Observations]


@pytest.fixture
def evaluating(run: Run) -> Callable[..., Observations]:
    one = run()

    def go(*calls: tuple[str, int], rounds: int = 4) -> Observations:
        """Calls of ``Net`` under these names, each with what goes in."""
        made = tuple(
            EvalCall("Net", rounds, 8, (), inputs, trained_as=name) for name, inputs in calls
        )
        return replace(one, eval_calls=made, eval_file=None)

    return go


Evaluating = Callable[..., Observations]


def order(run: Observations) -> list[tuple[str, int]]:
    return [(call.trained_as, call.inputs) for call in run.eval_calls]


def test_the_average_after_the_trained_or_before_it(evaluating: Evaluating) -> None:
    original = evaluating(("Net", 1), ("Net", 2), ("", 1), ("", 2))
    other = evaluating(("", 1), ("", 2), ("Net", 1), ("Net", 2))
    changed = in_order_of(original, other)
    assert order(changed) == order(original)
    assert changed.kept_calls == {0: 2, 1: 3, 2: 0, 3: 1}


def test_batch_by_batch_or_one_after_the_other(evaluating: Evaluating) -> None:
    original = evaluating(("Net", 1), ("Net#2", 1), ("Net", 2), ("Net#2", 2))
    other = evaluating(("Net", 1), ("Net", 2), ("Net#2", 1), ("Net#2", 2))
    assert order(in_order_of(original, other)) == order(original)


def test_in_other_batches_as_well(evaluating: Evaluating) -> None:
    original = evaluating(("Net", 1), ("Net", 2), ("", 1), ("", 2))
    other = evaluating(("", 3), ("Net", 3))
    assert order(in_order_of(original, other)) == [("Net", 3), ("", 3)]


def test_turns_of_another_length_stay_as_they_are(evaluating: Evaluating) -> None:
    """The last fold's network is evaluated again before all folds' networks are in turn."""
    original = evaluating(("Net#2", 1), ("Net#2", 1), ("Net", 2), ("Net#2", 2))
    other = evaluating(("Net#2", 1), ("Net", 2), ("Net#2", 2))
    assert order(in_order_of(original, other)) == order(other)


@pytest.mark.parametrize(
    "calls",
    [[("Net", 1), ("", 1)], [("Net", 2), ("", 3)]],
    ids=["the same", "other batches"],
)
def test_what_is_in_order_stays(evaluating: Evaluating, calls: list[tuple[str, int]]) -> None:
    other = evaluating(*calls)
    assert in_order_of(evaluating(("Net", 1), ("", 1)), other) is other


def test_what_is_called_elsewhere_stays(evaluating: Evaluating) -> None:
    other = evaluating(("", 1), ("Net", 1), rounds=5)
    assert in_order_of(evaluating(("Net", 1), ("", 1)), other) is other


def test_another_module_in_its_place_is_no_matter_of_order(evaluating: Evaluating) -> None:
    """The trained weights are evaluated where the averaged ones should be."""
    original, other = evaluating(("Net", 1), ("", 1)), evaluating(("Net", 1), ("Net", 1))
    assert order(in_order_of(original, other)) == order(other)


@pytest.fixture
def in_turns(run: Run) -> Callable[..., Observations]:
    """Two networks that are trained one after the other, in rounds 0 to 3 and 4 to 7, and evaluated once each."""
    one = run()
    names = [
        {n.replace("Net.", f"{net}."): u for n, u in s.parameters.items()}
        for s in one.steps[:1]
        for net in ("Net", "Net#2")
    ]
    steps = tuple(replace(step, parameters=names[step.round > 3]) for step in one.steps)

    def go(*calls: tuple[str, int, int, int]) -> Observations:
        """Calls under these names after so many rounds, each with what goes in and comes out."""
        made = tuple(
            EvalCall("Net", after, 8, (given,), inputs, trained_as=name)
            for name, after, inputs, checksum in calls
            for given in [TensorSummary((8, 1), "float32", checksum, 0.0, 0.0, 0.0, True)]
        )
        return replace(one, steps=steps, eval_calls=made, eval_file=None)

    return go


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("Net", 4, 1, 6), ("Net", 8)),
        (("Net", 3, 1, 6), ("Net", 3)),
        (("Net", 3, 1, 5), ("Net", 8)),
        (("Net", 4, 2, 5), ("Net", 4)),
        (("Net#2", 4, 1, 5), ("Net#2", 4)),
    ],
    ids=["as soon as it is trained", "before", "with the same result", "on others", "another"],
)
def test_a_network_that_nothing_trains_any_more_may_be_evaluated_earlier(
    in_turns: Evaluating, call: tuple[str, int, int, int], told: tuple[str, int]
) -> None:
    last = ("Net#2", 8, 1, 7)
    original, other = in_turns(("Net", 8, 1, 5), last), in_turns(call, last)
    calls = in_order_of(original, other).eval_calls
    assert [(one.trained_as, one.rounds) for one in calls] == [told, ("Net#2", 8)]
