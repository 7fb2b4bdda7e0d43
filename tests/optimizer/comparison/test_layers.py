from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.layers import explain
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.execution.observations import (
    LayerOutput,
    Observations,
    TensorSummary,
    TrainingCalls,
)

Run = Callable[..., Observations]
LOSS = Finding(Kind.LOSS, "loss 2, not 1", step=1)


def output(layer: str, norm: float) -> LayerOutput:
    summary = TensorSummary((4, 2), "float32", int(norm * 1e9), 0.1 * norm, norm, norm, True)
    return LayerOutput(layer, layer.rpartition(".")[2].title(), summary)


@pytest.fixture
def giving(run: Run) -> Callable[..., Observations]:
    plain = run(steps=2)

    def go(**norms: float) -> Observations:
        layers = tuple(output(f"Net.{name}", norm) for name, norm in norms.items())
        return replace(plain, layer_outputs=layers)

    return go


def said(finding: Finding, *runs: Observations, precision: Precision | None = None) -> str:
    original, other, *near = runs
    return explain([finding], original, other, near, precision)[0].message


def test_the_first_layer_that_differs_is_named(giving: Callable[..., Observations]) -> None:
    original, other = giving(stem=1.0, norm=2.0, head=3.0), giving(stem=1.0, norm=2.5, head=3.5)
    for precision in (None, Precision.FLOAT32):
        message = said(LOSS, original, other, precision=precision)
        assert message == "loss 2, not 1; the first layer whose output differs is Net.norm (Norm)"


def test_what_the_model_does_besides_its_layers_is_told(run: Run) -> None:
    """A function between two layers, or behind the last; the second of what it returns may be all that differs."""

    def giving(*norms: float) -> Observations:
        layers = (output("Net.head", 1.0), *(output("Net", norm) for norm in norms))
        return replace(run(steps=2), layer_outputs=layers)

    message = said(LOSS, giving(1.0, 2.0), giving(1.0, 2.5))
    assert message.endswith("but Net does not: the difference is in its own forward")
    assert "what follows" in said(LOSS, giving(1.0, 2.0), giving(1.0, 2.0))


def test_of_a_loss_nothing_is_known_of_what_it_is_given(run: Run) -> None:
    """Rows in another order have the same norm and mean."""

    def giving(loss: float) -> Observations:
        layers = (output("Net.head", 1.0), output("Net", 1.0), output("NLLLoss", loss))
        return replace(run(steps=2), layer_outputs=layers)

    message = said(LOSS, giving(2.0), giving(2.5))
    assert message.endswith("that of NLLLoss, whose input may differ already")


def test_what_runs_later_for_the_first_time_does_not_explain_the_first_step(
    giving: Callable[..., Observations],
) -> None:
    """A trained encoder that is called by itself at last: it gives something else because it was trained otherwise."""
    detached = Finding(Kind.GRADIENT, "gradient norm 2, not 1", step=1)

    def embedding(norm: float) -> Observations:
        whole = giving(stem=1.0, head=3.0)
        late = replace(output("Encoder.act", norm), rounds=8)
        return replace(whole, layer_outputs=(*whole.layer_outputs, late))

    assert said(detached, embedding(1.0), embedding(2.0)) == detached.message


def test_rows_in_another_order_may_be_the_reason_where_bits_differ(
    giving: Callable[..., Observations], run: Run
) -> None:
    """Noise is drawn for other samples then: each layer has the norm and mean it had, and the loss is another."""

    def reordered(observed: Observations, count: int) -> Observations:
        layers = tuple(
            replace(one, output=replace(one.output, checksum=one.output.checksum + (at < count)))
            for at, one in enumerate(observed.layer_outputs)
        )
        return replace(observed, layer_outputs=layers)

    original = giving(stem=1.0, head=3.0)
    message = said(LOSS, original, reordered(original, 2), precision=Precision.FLOAT32)
    assert message.endswith(
        "gives what it gave by norm and mean (its samples may come in another order), so the difference is in what follows"
    )

    def whole(norm: float) -> Observations:
        return replace(run(steps=2), layer_outputs=(output("Net.head", 1.0), output("Net", norm)))

    message = said(LOSS, whole(1.0), reordered(whole(2.0), 1), precision=Precision.FLOAT32)
    assert "another order), but Net does not: the difference is in its own forward" in message


def test_of_a_model_that_is_called_again_the_first_call_alone_is_known(run: Run) -> None:
    def called(samples: int, rounds: int = 0) -> Observations:
        calls = (TrainingCalls("Net", rounds, samples, samples - 4 if samples == 6 else 0),)
        layers = (output("Net.head", 1.0), output("Net", 1.0))
        return replace(run(steps=2), layer_outputs=layers, training_calls=calls)

    for once in (called(4), called(8, rounds=1), called(6)):
        assert said(LOSS, once, once).endswith("so the difference is in what follows")
    assert "in its first call every layer" in said(LOSS, called(4), called(8))


def test_a_loss_gives_less_than_it_is_called_on(run: Run) -> None:
    mean = LayerOutput("MSELoss", "MSELoss", TensorSummary((), "float32", 1, 0.1, 1.0, 1.0, True))
    calls = (TrainingCalls("MSELoss", 0, 8, 0),)
    with_loss = replace(run(steps=2), layer_outputs=(mean,), training_calls=calls)
    assert said(LOSS, with_loss, with_loss).endswith("so the difference is in what follows")


def test_rounding_is_no_difference(giving: Callable[..., Observations]) -> None:
    original, other = giving(stem=1.0, head=2.0), giving(stem=1.0 + 1e-6, head=2.5)
    assert said(LOSS, original, other, precision=Precision.FLOAT32).endswith("Net.head (Head)")
    first = "Net.stem (Stem), the first that runs: its input may differ already"
    assert said(LOSS, original, other).endswith(first)


def test_what_neighbours_do_is_no_difference(giving: Callable[..., Observations]) -> None:
    original, other = giving(stem=1.0, head=2.0), giving(stem=1.1, head=9.0)
    near = giving(stem=1.05, head=2.0)
    assert said(LOSS, original, other, near, precision=Precision.FLOAT32).endswith(
        "Net.head (Head)"
    )


def test_a_loss_made_otherwise_of_the_same_outputs(giving: Callable[..., Observations]) -> None:
    original = giving(stem=1.0, head=2.0)
    assert said(LOSS, original, original).endswith("the difference is in what follows")
    gradient = Finding(Kind.GRADIENT, "gradient", step=1)
    assert said(gradient, original, original) == "gradient"


def test_a_layer_that_runs_twice(run: Run) -> None:
    """An embedding of source and target; a recurrent network, whose layer is then given what was made of what it gave."""

    def giving(*norms: float) -> Observations:
        return replace(run(steps=2), layer_outputs=tuple(output("Net.emb", n) for n in norms))

    original = giving(1.0, 2.0)
    assert said(LOSS, original, original).endswith("the difference is in what follows")
    again = "differs is Net.emb (Emb), when it runs again (call 2): its input may differ already"
    assert said(LOSS, original, giving(1.0, 2.5)).endswith(again)


@pytest.mark.parametrize(
    "finding",
    [
        replace(LOSS, step=2),
        Finding(Kind.STDOUT, "printed", step=1),
        Finding(Kind.SAMPLES, "fewer", step=1),
    ],
)
def test_other_findings_stay_as_they_are(
    giving: Callable[..., Observations], finding: Finding
) -> None:
    original, other = giving(stem=1.0), giving(stem=2.0)
    assert said(finding, original, other) == finding.message


def test_layers_that_are_not_there_any_more_say_nothing(
    giving: Callable[..., Observations],
) -> None:
    original = giving(stem=1.0, norm=2.0, head=3.0)
    assert said(LOSS, original, giving()) == LOSS.message
    assert said(LOSS, original, giving(head=9.0)) == LOSS.message


def test_a_layer_that_is_called_on_other_samples_is_not_to_blame(
    giving: Callable[..., Observations],
) -> None:
    original, other = giving(stem=1.0, head=2.0), giving(stem=1.0, head=2.0)
    layers = [
        replace(one, output=replace(one.output, shape=(1, 2))) for one in original.layer_outputs
    ]
    assert said(LOSS, original, replace(other, layer_outputs=tuple(layers))) == LOSS.message
