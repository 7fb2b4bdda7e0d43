from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchopt_cli.optimizer.comparison.exact import compare_bits
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.execution.observations import EvalCall, Loss, Observations

Run = Callable[..., Observations]


def test_two_equal_runs_are_equal_bit_for_bit(run: Run) -> None:
    assert compare_bits(run(), run()) == []


def test_the_first_differing_step_and_tensor_are_told(run: Run) -> None:
    found = {f.kind: f for f in compare_bits(run(), run(mistakes=["rate"]))}
    assert (found[Kind.PARAMETER].step, found[Kind.PARAMETER].tensor) == (4, "Net.fc1.weight")
    assert "after the step: the norm of the update is" in found[Kind.PARAMETER].message
    assert found[Kind.LOSS].step == 5
    assert Kind.INITIAL_PARAMETERS not in found


def test_other_initial_values_are_named(run: Run) -> None:
    found = compare_bits(run(), run(perturb=1e-6))
    assert (found[0].kind, found[0].step) == (Kind.INITIAL_PARAMETERS, 0)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(data=st.data())
def test_any_single_changed_checksum_is_seen(run: Run, data: st.DataObject) -> None:
    original = run(steps=3)
    step = data.draw(st.integers(0, 2))
    name = data.draw(st.sampled_from(sorted(original.steps[step].parameters)))
    bit = data.draw(st.integers(0, 31))
    update = original.steps[step].parameters[name]
    changed = replace(update, checksum=update.checksum ^ (1 << bit))
    steps = list(original.steps)
    steps[step] = replace(steps[step], parameters={**steps[step].parameters, name: changed})
    (finding,) = compare_bits(original, replace(original, steps=tuple(steps)))
    assert (finding.kind, finding.step, finding.tensor) == (Kind.PARAMETER, step + 1, name)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
@given(bit=st.integers(0, 31), place=st.integers(0, 15))
def test_any_single_bit_of_a_buffer_is_seen(run: Run, bit: int, place: int) -> None:
    from safetensors.numpy import save_file

    original, other = run(steps=1), run(steps=1)
    tensors = other.buffers()
    flat = tensors["Net.bn.running_mean"].view(np.uint32)
    flat[place % flat.size] ^= np.uint32(1 << bit)
    save_file(tensors, other.folder / "buffers")
    assert [f.kind for f in compare_bits(original, other)] == [Kind.BUFFER]


def test_nan_equals_nan(run: Run) -> None:
    original = run(steps=2)
    broken = replace(
        original,
        steps=tuple(replace(s, losses=(Loss(float("nan"), "float32"),)) for s in original.steps),
    )
    assert compare_bits(broken, broken) == []


@pytest.mark.parametrize("change", ["output", "calls", "checkpoint", "snapshot"])
def test_outputs_checkpoints_and_snapshots_count(run: Run, change: str) -> None:
    original = run(steps=2)
    call, save, last = original.eval_calls[0], original.checkpoints[0], original.snapshots[-1]
    entry = replace(save.entries["model/fc1.bias"], sha256="other")
    others = {
        "output": replace(
            original,
            eval_calls=(replace(call, outputs=(replace(call.outputs[0], checksum=1),)),),
        ),
        "calls": replace(original, eval_calls=(call, call)),
        "checkpoint": replace(
            original,
            checkpoints=(replace(save, entries={**save.entries, "model/fc1.bias": entry}),),
        ),
        "snapshot": replace(
            original,
            snapshots=(
                *original.snapshots[:-1],
                replace(last, hashes={**last.hashes, "Net.fc1.bias": "other"}),
            ),
        ),
    }
    expected = {
        "output": Kind.EVALUATION_OUTPUT,
        "calls": Kind.EVALUATION_OUTPUT,
        "checkpoint": Kind.CHECKPOINT_VALUE,
        "snapshot": Kind.PARAMETER,
    }
    assert [f.kind for f in compare_bits(original, others[change])] == [expected[change]]


def test_a_call_more_is_told_where_it_is_made(run: Run) -> None:
    original = run(steps=2)
    call = original.eval_calls[0]
    (found,) = compare_bits(original, replace(original, eval_calls=(call, call)))
    assert found.step == call.rounds + 1


def test_outputs_that_differ_before_a_call_more_are_told_first(run: Run) -> None:
    original = run(steps=2)
    call = original.eval_calls[0]
    changed = replace(call, outputs=(replace(call.outputs[0], checksum=1),))
    later = replace(call, rounds=call.rounds + 1)

    def first(*calls: EvalCall) -> tuple[str, int | None]:
        found = compare_bits(
            replace(original, eval_calls=(call, later)), replace(original, eval_calls=calls)
        )
        assert [f.kind for f in found] == [Kind.EVALUATION_OUTPUT]
        return found[0].message, found[0].step

    differs = ("output of evaluation call 1 differs", call.rounds + 1)
    assert first(changed) == differs
    assert first(changed, later, later) == differs
    assert first(later) == ("another number of calls", call.rounds + 1)


def test_an_output_of_another_length_is_told_with_it(run: Run) -> None:
    original = run(steps=2)
    call = original.eval_calls[0]
    output = replace(call.outputs[0], checksum=1, norm=2 * call.outputs[0].norm)
    other = replace(original, eval_calls=(replace(call, outputs=(output,)),))
    (found,) = compare_bits(original, other)
    assert "its norm is" in found.message
    assert (found.original, found.rewritten) == (call.outputs[0].norm, output.norm)


def test_a_parameter_that_no_optimizer_has_is_told_as_that(run: Run) -> None:
    original = run(steps=2)
    first = original.snapshots[0]
    others = {n: h for n, h in first.hashes.items() if n != "Net.fc1.bias"}
    parameters = {n: info for n, info in original.parameters.items() if n != "Net.fc1.bias"}
    other = replace(
        original,
        snapshots=(replace(first, hashes=others), *original.snapshots[1:]),
        parameters=parameters,
    )
    found = compare_bits(original, other)[0]
    assert (found.kind, found.tensor) == (Kind.INITIAL_PARAMETERS, "Net.fc1.bias")
    assert found.message == "is not among the parameters that the optimizers have"
    given_later = replace(other, parameters=original.parameters)
    found = compare_bits(original, given_later)[0]
    assert found.message == "is not among the parameters that the optimizers have at first"
    found = compare_bits(other, original)[0]
    assert found.message.endswith("that the optimizers have, and not in the original")


def test_losses_that_read_the_same_are_told_in_more_digits(run: Run) -> None:
    original = run(steps=1)
    step = original.steps[0]

    def with_loss(value: float) -> Observations:
        return replace(original, steps=(replace(step, losses=(Loss(value, "float64"),)),))

    (found,) = compare_bits(with_loss(4.0), with_loss(4.0 + 1e-12))
    assert found.message == "loss 4.000000000001, not 4"
