from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from torchopt_cli.optimizer.comparison.counterparts import Counterparts
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_exact
from torchopt_cli.optimizer.execution.observations import (
    EvalCall,
    Loss,
    Observations,
    ParameterUpdate,
    Snapshot,
    TensorSummary,
    TrainingCalls,
)

Run = Callable[..., Observations]
FROZEN = "Net.frozen.weight"


def judged(original: Observations, rewritten: Observations):
    return judge_exact(original, [original], rewritten)


def with_frozen(run: Observations, gradient: float | None = None) -> Observations:
    """``run`` with an optimizer that has another parameter, which has a ``gradient`` of that norm in the last step."""
    update = ParameterUpdate(None, 0.0, 7)
    last = ParameterUpdate(gradient, 0.0, 7)
    steps = [
        replace(step, parameters={**step.parameters, FROZEN: update}) for step in run.steps[:-1]
    ]
    end = replace(run.steps[-1], parameters={**run.steps[-1].parameters, FROZEN: last})
    (info,) = run.optimizers
    return replace(
        run,
        steps=(*steps, end),
        optimizers=(replace(info, groups=((*info.groups[0], FROZEN),)),),
        parameters={**run.parameters, FROZEN: next(iter(run.parameters.values()))},
        snapshots=tuple(
            Snapshot(s.round, {**s.hashes, FROZEN: "00"}, s.file) for s in run.snapshots
        ),
    )


def test_runs_that_do_the_same_have_all_in_common(run: Run) -> None:
    original = run()
    common = Counterparts.of(original, original)
    assert common == Counterparts()
    assert common.in_common(original) == original
    assert not common.notes()


@pytest.mark.parametrize("more", ["original", "rewritten"])
def test_a_parameter_that_never_has_a_gradient_need_not_be_given_to_an_optimizer(
    run: Run, more: str
) -> None:
    runs = [with_frozen(run()), run()]
    verdict = judged(*(runs if more == "original" else reversed(runs)))
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = verdict.findings
    assert (told.kind, told.fails) == (Kind.STEPPED_PARAMETERS, False)
    assert FROZEN in told.message


def test_one_that_has_a_gradient_in_any_step_is_missed(run: Run) -> None:
    verdict = judged(with_frozen(run(), gradient=0.1), run())
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert Kind.STEPPED_PARAMETERS in {f.kind for f in verdict.failures}


def test_a_whole_group_of_such_parameters_is_missed(run: Run) -> None:
    original = with_frozen(run())
    (info,) = original.optimizers
    names = tuple(n for n in info.groups[0] if n != FROZEN)
    settings = info.hyperparameters * 2
    apart = replace(info, groups=(names, (FROZEN,)), hyperparameters=settings)
    verdict = judged(replace(original, optimizers=(apart,)), run())
    assert verdict.outcome is Outcome.NOT_EQUIVALENT


def taking(run: Observations, times: int, *, accumulated: bool = True) -> Observations:
    """``run`` with gradients that it takes for itself so many times before each step."""
    taken = (Loss(3.0, "float32", taken=True),) * times
    return replace(
        run,
        steps=tuple(
            replace(s, losses=(*taken, *(s.losses if accumulated else ()))) for s in run.steps
        ),
    )


def test_gradients_may_be_taken_another_number_of_times(run: Run) -> None:
    verdict = judged(run(), taking(run(), 2))
    assert verdict.outcome is Outcome.EQUIVALENT
    assert [f.kind for f in verdict.findings] == [Kind.BACKWARD_CALLS]


def with_other_gradients(run: Observations) -> Observations:
    """``run`` with gradients twice as long, which its parameters do not show (they are clipped, say)."""

    def longer(update: ParameterUpdate) -> ParameterUpdate:
        return replace(update, grad_norm=2 * (update.grad_norm or 0.0))

    steps = [
        replace(step, parameters={n: longer(one) for n, one in step.parameters.items()})
        for step in run.steps
    ]
    return replace(run, steps=tuple(steps))


def test_where_all_gradients_are_taken_their_number_counts(run: Run) -> None:
    original = taking(run(), 1, accumulated=False)
    verdict = judged(original, with_other_gradients(taking(run(), 2, accumulated=False)))
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.failures[0].kind is Kind.BACKWARD_CALLS


def test_a_backward_call_more_is_not_hidden_by_gradients_taken(run: Run) -> None:
    more = taking(run(), 1)
    extra = tuple(replace(s, losses=(*s.losses, Loss(1.0, "float32"))) for s in more.steps)
    verdict = judged(run(), with_other_gradients(replace(more, steps=extra)))
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.failures[0].kind is Kind.BACKWARD_CALLS


def asked(run: Observations, *rounds: int, constant: bool = True) -> Observations:
    teacher = [EvalCall("Teacher", number, 8, (), constant=constant) for number in rounds]
    return replace(run, eval_calls=(*teacher, *run.eval_calls))


def test_a_teacher_may_be_asked_once(run: Run) -> None:
    verdict = judged(asked(run(), 0, 1, 2), asked(run(), 0))
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = verdict.findings
    assert (told.kind, told.tensor, told.fails) == (Kind.EVALUATION, "Teacher", False)


def with_weights(run: Observations, *rounds: tuple[int, ...]) -> Observations:
    """``run`` with networks of one class evaluated after rounds 1, 2, ...: of each the number of its weights, which never change."""
    calls = [
        EvalCall("Loaded", after, 8, (), constant=True, weights=number)
        for after, numbers in enumerate(rounds, start=1)
        for number in numbers
    ]
    return replace(run, eval_calls=(*calls, *run.eval_calls))


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        (((1, 2), (1, 2)), ((1, 2), ()), Outcome.EQUIVALENT),
        (((1,), (2,)), ((1,), (2, 2)), Outcome.NOT_EQUIVALENT),
        (((1, 1), (2, 2)), ((1,), (2,)), Outcome.NOT_EQUIVALENT),
    ],
    ids=["two teachers", "evaluated twice", "fewer samples"],
)
def test_networks_that_are_loaded_anew_are_no_teachers(
    run: Run,
    ours: tuple[tuple[int, ...], ...],
    theirs: tuple[tuple[int, ...], ...],
    outcome: Outcome,
) -> None:
    assert judged(with_weights(run(), *ours), with_weights(run(), *theirs)).outcome is outcome


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"rounds": (2, 4)}, {"rounds": ()}),  # not asked at all
        ({"rounds": (4,)}, {"rounds": ()}),  # an average, evaluated once
        ({"rounds": (4,)}, {"rounds": (2,)}),
        ({"rounds": (2, 4), "constant": False}, {"rounds": (2,), "constant": False}),
        ({"rounds": (2, 4), "constant": False}, {"rounds": (2,)}),
    ],
)
def test_an_evaluation_less_is_missed_where_weights_may_change(
    run: Run, ours: dict[str, object], theirs: dict[str, object]
) -> None:
    def calls(rounds: tuple[int, ...], constant: bool = True) -> Observations:
        return asked(run(), *rounds, constant=constant)

    verdict = judged(calls(**ours), calls(**theirs))  # pyright: ignore[reportArgumentType]
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert Kind.EVALUATION in {f.kind for f in verdict.failures}


def in_training_mode(run: Observations, *, heeded: bool = False) -> Observations:
    """``run`` with its evaluation in training mode, of a module that heeds it or not."""
    calls = () if heeded else run.eval_calls
    (call,) = run.eval_calls
    training = TrainingCalls(call.module, call.rounds, call.samples, call.samples)
    return replace(
        run, eval_calls=(), eval_file=None, further_calls=calls, training_calls=(training,)
    )


@pytest.mark.parametrize("dropped", [True, False])
def test_a_mode_that_no_layer_heeds_may_be_another(run: Run, dropped: bool) -> None:
    pair = run(), in_training_mode(run())
    verdict = judged(*(pair if dropped else reversed(pair)))
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = verdict.findings
    assert (told.kind, told.tensor, told.fails) == (Kind.EVALUATION_MODE, "Net", False)


def test_what_is_evaluated_in_another_mode_is_compared_all_the_same(run: Run) -> None:
    other = in_training_mode(run())
    (call,) = other.further_calls
    outputs = (replace(call.outputs[0], checksum=1, mean=2.0),)
    verdict = judged(run(), replace(other, further_calls=(replace(call, outputs=outputs),)))
    assert {f.kind for f in verdict.failures} == {Kind.EVALUATION_OUTPUT}


def test_a_mode_that_a_layer_heeds_or_another_number_of_samples_is_missed(run: Run) -> None:
    fewer = in_training_mode(run())
    calls = tuple(replace(c, samples=c.samples - 1) for c in fewer.further_calls)
    rewrites = {
        "heeded": (in_training_mode(run(), heeded=True), Kind.EVALUATION_MODE),
        "fewer": (replace(fewer, further_calls=calls), Kind.EVALUATION),
    }
    for name, (rewritten, kind) in rewrites.items():
        verdict = judged(run(), rewritten)
        assert verdict.outcome is Outcome.NOT_EQUIVALENT, name
        assert kind in {f.kind for f in verdict.failures} | {Kind.EVALUATION}, name


def test_training_in_eval_mode_is_training_where_no_layer_heeds_it(run: Run) -> None:
    left_on = EvalCall("Net", 1, 4, (), trains=True)
    other = replace(run(), eval_calls=(left_on, *run().eval_calls))
    assert judged(run(), other).outcome is Outcome.EQUIVALENT
    heeded = replace(other, eval_calls=(replace(left_on, trains=False), *run().eval_calls))
    assert judged(run(), heeded).outcome is Outcome.NOT_EQUIVALENT


def with_frozen_part(run: Observations, *, inside: bool, mean: float = 1.0) -> Observations:
    """``run`` with a frozen part called before its first step, by itself or ``inside`` of another module."""
    output = TensorSummary((4, 3), "float32", int(mean), mean, 1.0, 1.0, True)
    call = EvalCall("Body", 0, 4, (output,), number=0, inside=inside)
    later = tuple(replace(one, number=n) for n, one in enumerate(run.eval_calls, start=1))
    if inside:
        return replace(run, eval_calls=later, further_calls=(call,))
    return replace(run, eval_calls=(call, *later), kept_calls={0: 1})


@pytest.mark.parametrize("folded", [True, False])
def test_a_frozen_part_may_be_called_inside_of_the_whole(run: Run, folded: bool) -> None:
    original, rewritten = (with_frozen_part(run(), inside=i) for i in (not folded, folded))
    verdict = judged(original, rewritten)
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = verdict.findings
    assert (told.kind, told.tensor, told.fails) == (Kind.EVALUATION_MODE, "Body", False)
    assert "inside of another module" in told.message


def test_what_a_frozen_part_gives_there_is_compared(run: Run) -> None:
    original = with_frozen_part(run(), inside=False)
    verdict = judged(original, with_frozen_part(run(), inside=True, mean=2.0))
    assert {f.kind for f in verdict.failures} == {Kind.EVALUATION_OUTPUT}


def test_a_frozen_part_that_is_called_nowhere_is_missed(run: Run) -> None:
    verdict = judged(with_frozen_part(run(), inside=False), run())
    assert Kind.EVALUATION in {f.kind for f in verdict.failures}


def evaluating(run: Observations, *inputs: int, mean: float = 1.0, rounds: int = 2) -> Observations:
    """``run`` with an evaluation of batches that are told apart by ``inputs``."""
    calls = tuple(
        EvalCall(
            "Net",
            rounds,
            4,
            (TensorSummary((4, 2), "float32", int(8 * mean), mean, 2.0, 1.5, True),),
            inputs=one,
        )
        for one in inputs
    )
    return replace(run, eval_calls=(*run.eval_calls, *calls), eval_file=None)


def test_a_batch_may_be_evaluated_again_for_the_same_result(run: Run) -> None:
    once, twice = evaluating(run(), 7, 8), evaluating(run(), 7, 7, 8, 8, 8)
    for verdict in (judged(once, twice), judged(twice, once)):
        assert verdict.outcome is Outcome.EQUIVALENT
        assert any("evaluates batches again" in finding.message for finding in verdict.findings)


def test_so_may_one_of_earlier_rounds(run: Run) -> None:
    """The best model is loaded back: what it gives is known from the epoch that it is of."""
    again = evaluating(evaluating(run(), 7, 8), 9, 7, 8, rounds=4)
    kept = evaluating(evaluating(run(), 7, 8), 9, rounds=4)
    for verdict in (judged(again, kept), judged(kept, again)):
        assert verdict.outcome is Outcome.EQUIVALENT
        assert any("evaluates batches again" in finding.message for finding in verdict.findings)
    for other in (
        evaluating(evaluating(run(), 7, 8), 9, 10, rounds=4),
        evaluating(run(), 7, 8),
    ):
        assert judged(again, other).failures[0].kind is Kind.EVALUATION


def test_other_batches_or_none_are_missed(run: Run) -> None:
    whole = evaluating(run(), 7, 8)
    for other in (
        evaluating(run(), 7, 7, 7),
        evaluating(run(), 7, 8, 9),
        evaluating(run(), 7),
        run(),
    ):
        verdict = judged(whole, other)
        assert verdict.outcome is Outcome.NOT_EQUIVALENT
        assert verdict.failures[0].kind is Kind.EVALUATION


def test_a_batch_that_gives_something_else_is_no_repeat(run: Run) -> None:
    drawn = evaluating(evaluating(run(), 7), 7, mean=1.5)
    assert judged(drawn, evaluating(run(), 7)).outcome is Outcome.NOT_EQUIVALENT


def test_kept_outputs_stay_those_of_their_calls(run: Run) -> None:
    original, further = run(), EvalCall("Body", 0, 4, ())
    (call,) = original.eval_calls
    both = original.with_eval_calls((further, call))
    assert both.eval_outputs().keys() == {"1.0"}
    assert (both.eval_outputs()["1.0"] == original.eval_outputs()["0.0"]).all()
    assert both.with_eval_calls((call,)).eval_outputs().keys() == {"0.0"}
    assert both.with_eval_calls((further,)).eval_outputs() == {}


def test_a_policy_that_acts_in_training_mode_is_no_evaluation(run: Run) -> None:
    acts = (EvalCall("Net", 1, 1, (), number=0), EvalCall("Net", 2, 1, (), number=1))
    fewer = replace(run(), further_calls=acts[:1])
    assert judged(replace(run(), further_calls=acts), fewer).outcome is Outcome.EQUIVALENT


def test_what_longer_runs_leave_at_their_end_is_not_the_reason(run: Run) -> None:
    verdict = judged(run(steps=4), run(steps=8))
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert Kind.OPTIMIZER_STEPS in {f.kind for f in verdict.failures}
    assert Kind.BUFFER not in {f.kind for f in verdict.failures}


def evaluated_by_parts(
    run: Observations, *calls: tuple[str, int], part: bool = True
) -> Observations:
    """``run``, which evaluates modules of these names on so many rows, one after the other, in the end."""
    (first, *_) = run.eval_calls
    made = tuple(
        replace(
            first,
            module=name,
            samples=rows,
            outputs=(replace(first.outputs[0], shape=(rows, 3)),),
            number=number,
            rounds=run.rounds,
            part=part,
        )
        for number, (name, rows) in enumerate(calls)
    )
    return replace(run, eval_calls=made, eval_file=None, stdout="")


@pytest.mark.parametrize(
    ("theirs", "part", "outcome"),
    [
        ([("Conv1d", 56), ("Linear", 10)], True, Outcome.EQUIVALENT),
        ([("Conv1d", 56), ("Linear", 10)], False, Outcome.NOT_EQUIVALENT),
        ([("Conv1d", 56), ("Linear", 12)], True, Outcome.NOT_EQUIVALENT),
        ([("Linear", 10), ("Conv1d", 56)], True, Outcome.NOT_EQUIVALENT),
        ([("Linear", 10)], True, Outcome.NOT_EQUIVALENT),
    ],
    ids=["padding", "networks", "samples", "the last part", "not called"],
)
def test_a_part_may_see_another_number_of_rows_where_as_many_come_behind_it(
    run: Run, theirs: list[tuple[str, int]], part: bool, outcome: Outcome
) -> None:
    original = evaluated_by_parts(run(), ("Conv1d", 53), ("Linear", 10), part=part)
    verdict = judged(original, evaluated_by_parts(run(), *theirs, part=part))
    assert verdict.outcome is outcome
    told = [f.message for f in verdict.findings if not f.fails]
    assert any("number of rows" in message for message in told) == (outcome is Outcome.EQUIVALENT)


def with_flow(run: Observations) -> Observations:
    """``run``, whose evaluations are each of what the one before gives, and whose modules are layers."""
    made = [replace(c, layer=True, inputs=n) for n, c in enumerate(run.eval_calls)]
    for before, call in pairwise(made):
        (output,) = before.outputs
        made[before.number] = replace(before, outputs=(replace(output, checksum=call.inputs),))
    return replace(run, eval_calls=tuple(made))


@pytest.mark.parametrize("flows", [False, True], ids=["not fed", "fed"])
@pytest.mark.parametrize("part", [False, True], ids=["alone", "part"])
def test_a_layer_may_be_called_by_its_function(run: Run, *, part: bool, flows: bool) -> None:
    """What comes behind it is compared; nothing is known of a layer that leads to nothing there."""
    original = evaluated_by_parts(run(), ("Embedding", 10), ("Linear", 10), part=part)
    original = with_flow(original)
    other = replace(original, eval_calls=original.eval_calls[1:])
    if not flows:
        calls = (replace(original.eval_calls[0], inputs=77), *original.eval_calls[1:])
        outputs = (replace(calls[0].outputs[0], checksum=5),)
        original = replace(original, eval_calls=(replace(calls[0], outputs=outputs), *calls[1:]))
    expected = Outcome.EQUIVALENT if part or flows else Outcome.NOT_EQUIVALENT
    for one, two in ((original, other), (other, original)):
        verdict = judged(one, two)
        assert verdict.outcome is expected
        told = [f.message for f in verdict.findings if not f.fails]
        assert any("what it leads to is compared" in m for m in told) == (part or flows)


@pytest.mark.parametrize("missing", ["Linear", "Net"])
def test_a_layer_that_comes_last_and_a_network_are_missed(run: Run, missing: str) -> None:
    calls = ("Net", 10), ("Embedding", 10), ("Linear", 10)
    original = evaluated_by_parts(run(), *calls)
    made = tuple(replace(c, layer=c.module != "Net") for c in original.eval_calls)
    original = replace(original, eval_calls=made)
    other = replace(original, eval_calls=tuple(c for c in made if c.module != missing))
    verdict = judged(original, other)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.failures[0].kind is Kind.EVALUATION


@pytest.mark.parametrize(
    ("before", "missing", "outcome"),
    [
        ([("Net", 10), ("MSELoss", 10)], "MSELoss", Outcome.EQUIVALENT),
        ([("Dropout", 10), ("Net", 10)], "Dropout", Outcome.EQUIVALENT),
        ([("MSELoss", 10)], "MSELoss", Outcome.NOT_EQUIVALENT),
    ],
    ids=["a loss", "dropout", "alone"],
)
def test_a_layer_without_weights_may_come_anywhere(
    run: Run, before: list[tuple[str, int]], missing: str, outcome: Outcome
) -> None:
    original = evaluated_by_parts(run(), *before, part=False)
    made = tuple(replace(c, layer=c.module != "Net") for c in original.eval_calls)
    made = tuple(replace(c, stateless=c.layer) for c in made)
    original = replace(original, eval_calls=made)
    other = replace(original, eval_calls=tuple(c for c in made if c.module != missing))
    assert judged(original, other).outcome is outcome


def test_a_layer_that_is_left_in_training_mode_is_not_called_by_its_function(run: Run) -> None:
    original = evaluated_by_parts(run(), ("Dropout", 10), ("Net", 10), part=False)
    made = tuple(
        replace(c, layer=c.module != "Net", stateless=c.module != "Net")
        for c in original.eval_calls
    )
    original = replace(original, eval_calls=made)
    left_on = TrainingCalls("Dropout", made[0].rounds, 10, 10)
    other = replace(original, eval_calls=made[1:], training_calls=(left_on,))
    verdict = judged(original, other)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.failures[0].kind is Kind.EVALUATION_MODE


@pytest.mark.parametrize(
    ("samples", "networks", "left_out"),
    [(-1, 1, True), (0, 1, True), (1, 1, False), (0, 2, False)],
    ids=["fewer", "as many", "more", "of another network, maybe"],
)
def test_a_part_need_not_be_called_where_the_whole_is(
    run: Run, samples: int, networks: int, left_out: bool
) -> None:
    """A network that is left early is called block by block; what its blocks give is known from the whole."""

    def given(one: Observations, *, by_parts: bool) -> Observations:
        (call,) = (replace(c, trained_as="Net") for c in one.eval_calls[:1])
        part = replace(
            call, module="Block", samples=call.samples + samples, part=True, trained_as="", number=1
        )
        called = (call, part) if by_parts else (call,)
        groups = (("Net.weight", "Other.weight")[:networks],)
        optimizers = tuple(replace(info, groups=groups) for info in one.optimizers)
        return replace(one, eval_calls=called, eval_file=None, optimizers=optimizers)

    for first in (True, False):
        found = Counterparts.of(given(run(), by_parts=first), given(run(), by_parts=not first))
        assert bool(found.in_whole) == left_out
        assert any("evaluated as a whole there" in one.message for one in found.notes()) == left_out
