from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.coverage import compare_coverage
from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.execution.observations import (
    EvalCall,
    Observations,
    TensorSummary,
    TrainingCalls,
)

Run = Callable[..., Observations]


def training(samples: int, without_gradients: int = 0, rounds: int = 4) -> TrainingCalls:
    return TrainingCalls("Net", rounds, samples, without_gradients)


@pytest.fixture
def original(run: Run) -> Observations:
    calls = (EvalCall("Net", 4, 100, ()), EvalCall("Net", 4, 28, ()))
    return replace(run(steps=2), eval_calls=calls, training_calls=(training(32),))


def found(original: Observations, **changes: object) -> Finding:
    (finding,) = compare_coverage(original, replace(original, **changes))
    assert finding.fails
    assert (finding.step, finding.tensor) == (finding.step or 0, "Net")
    return finding


def test_the_same_coverage_passes(original: Observations) -> None:
    assert compare_coverage(original, original) == []


@pytest.mark.parametrize(
    ("calls", "word"),
    [
        ((), "missing"),
        ((EvalCall("Net", 4, 100, ()),), "sees 100 samples, not 128"),
        ((EvalCall("Net", 4, 128, ()), EvalCall("Net", 5, 32, ())), "not in the original"),
    ],
)
def test_evaluations_missing_cut_and_added_fail(
    original: Observations, calls: tuple[EvalCall, ...], word: str
) -> None:
    finding = found(original, eval_calls=calls)
    assert finding.kind is Kind.EVALUATION
    assert word in finding.message


def test_a_search_in_training_mode_may_look_at_another_number_of_samples(
    original: Observations,
) -> None:
    finding = found(original, eval_calls=(), training_calls=(training(32 + 150, 150),))
    assert finding.kind is Kind.EVALUATION_MODE
    assert "is evaluated in training mode after round 4" in finding.message


@pytest.mark.parametrize(("trained", "asked"), [(32, False), (16, True)])
def test_whether_eval_mode_is_left_on_is_asked_where_less_is_trained(
    original: Observations, trained: int, asked: bool
) -> None:
    calls = (*original.eval_calls, EvalCall("Net", 4, 40, ()))
    message = found(original, eval_calls=calls, training_calls=(training(trained),)).message
    assert message.startswith("evaluation of Net after round 4 sees 168 samples, not 128")
    assert ("is eval mode left on?" in message) == asked
    message = found(original, eval_calls=(), training_calls=(training(trained),)).message
    assert message == "evaluation of Net after round 4 is missing"


@pytest.mark.parametrize("rounds", [3, 5])
def test_an_evaluation_at_another_place_is_told_as_one(original: Observations, rounds: int) -> None:
    finding = found(original, eval_calls=(EvalCall("Net", rounds, 128, ()),))
    assert (
        finding.message == f"Net is evaluated after round {rounds}, in the original after round 4"
    )


def test_an_evaluation_behind_one_step_fewer(run: Run, original: Observations) -> None:
    """As where the batches that are left over at the end of an epoch get no step of their own."""
    steps = list(run(steps=6).steps)
    before = replace(original, steps=tuple(steps))
    steps[3] = replace(steps[3], losses=steps[3].losses * 2)
    message = found(before, eval_calls=(EvalCall("Net", 3, 128, ()),), steps=tuple(steps)).message
    assert message.endswith(
        "after round 4: the step before it is missing, and its gradients go into the next"
    )


def test_an_evaluation_of_fewer_samples_at_another_place_is_another(original: Observations) -> None:
    finding = found(original, eval_calls=(EvalCall("Net", 3, 100, ()),))
    assert "not in the original" in finding.message


def test_an_evaluation_in_other_batches_passes(original: Observations) -> None:
    assert (
        compare_coverage(original, replace(original, eval_calls=(EvalCall("Net", 4, 128, ()),)))
        == []
    )


@pytest.mark.parametrize(
    ("shape", "samples", "same"),
    [((16, 8), 16, True), ((15, 8), 15, False), ((16,), 16, False), ((), 16, False)],
    ids=["as many results", "a sample less", "one result for each", "a mean"],
)
def test_candidates_beside_each_other_in_the_batch(
    original: Observations, shape: tuple[int, ...], samples: int, same: bool
) -> None:
    """128 scores, one for each of 8 candidates of 16 guests: guest by guest, and all guests at once."""
    one_by_one = tuple(EvalCall("Net", 4, 8, (output((8,)),)) for _ in range(16))
    together = (EvalCall("Net", 4, samples, (output(shape),)),)
    before, after = (replace(original, eval_calls=calls) for calls in (one_by_one, together))
    assert (compare_coverage(before, after) == []) is same


def output(shape: tuple[int, ...]) -> TensorSummary:
    return TensorSummary(shape, "float32", 0, 0.0, 1.0, 1.0, True)


def test_an_evaluation_in_training_mode_is_named(original: Observations) -> None:
    finding = found(original, eval_calls=(), training_calls=(training(160, 128),))
    assert finding.kind is Kind.EVALUATION_MODE
    assert "is evaluated in training mode after round 4" in finding.message


@pytest.mark.parametrize(
    ("layers", "evaluated", "trained"),
    [
        ((), "", ""),
        (("Linear(3, 3)", "Dropout(p=0.0, inplace=False)"), "", ""),
        (("Dropout2d(p=0.05, inplace=False)",), ": dropout is on", ": dropout is off"),
        (("LSTM(3, 3, num_layers=2, dropout=0.1)",), ": dropout is on", ": dropout is off"),
        (
            ("LSTM(3, 3)", "BatchNorm1d(3, eps=1e-05)"),
            ": BatchNorm uses its batches' statistics",
            ": BatchNorm uses its running statistics",
        ),
        (
            ("SyncBatchNorm(3, eps=1e-05)", "Dropout(p=0.5, inplace=False)"),
            ": dropout is on and BatchNorm uses its batches' statistics",
            ": dropout is off and BatchNorm uses its running statistics",
        ),
    ],
    ids=["not known", "none", "dropout", "between layers", "BatchNorm", "both"],
)
def test_what_the_other_mode_does_is_told_of_the_layers_there_are(
    original: Observations, layers: tuple[str, ...], evaluated: str, trained: str
) -> None:
    settings = {"Other.0": "Dropout(p=0.5)", **{f"Net.{n}": s for n, s in enumerate(layers)}}
    run = replace(original, layer_settings=settings)
    message = found(run, eval_calls=(), training_calls=(training(160, 128),)).message
    assert f"after round 4{evaluated} (is model.eval() missing?)" in message
    calls = (*run.eval_calls, EvalCall("Net", 4, 32, ()))
    message = found(run, eval_calls=calls, training_calls=()).message
    assert f"after round 4{trained} (is model.train() missing?" in message


def test_training_in_eval_mode_is_named(original: Observations) -> None:
    calls = (*original.eval_calls, EvalCall("Net", 4, 32, ()))
    finding = found(original, eval_calls=calls, training_calls=())
    assert finding.kind is Kind.EVALUATION_MODE
    assert "trains in eval mode" in finding.message


def test_an_evaluation_that_is_put_right_is_no_training_in_eval_mode(
    original: Observations,
) -> None:
    before = replace(original, eval_calls=(), training_calls=(training(160, 128),))
    finding = found(before, eval_calls=original.eval_calls, training_calls=(training(32),))
    assert finding.kind is Kind.EVALUATION_MODE
    assert "where the original calls it without gradients in training mode" in finding.message


def test_more_calls_in_training_mode_make_up_for_no_evaluation(original: Observations) -> None:
    assert found(original, eval_calls=(), training_calls=(training(64),)).kind is Kind.EVALUATION
