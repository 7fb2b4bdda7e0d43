from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from torchopt_cli.optimizer.comparison.checkpoints import (
    compare_checkpoint_values,
    compare_checkpoints,
)
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.execution.observations import Checkpoint, CheckpointEntry, Observations

Run = Callable[..., Observations]


def saving(original: Observations, *saves: Checkpoint) -> Observations:
    return replace(original, checkpoints=saves)


def kinds(original: Observations, *saves: Checkpoint) -> list[Kind]:
    return [f.kind for f in compare_checkpoints(original, saving(original, *saves)) if f.fails]


@pytest.fixture
def original(run: Run) -> Observations:
    return run(steps=2)


@pytest.fixture
def save(original: Observations) -> Checkpoint:
    return original.checkpoints[0]


def test_the_same_checkpoints_pass(original: Observations) -> None:
    assert compare_checkpoints(original, original) == []
    assert compare_checkpoint_values(original, original, (), None) == []


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module."])
def test_renamed_keys_fail(original: Observations, save: Checkpoint, prefix: str) -> None:
    entries = {k.replace("model/", f"model/{prefix}"): e for k, e in save.entries.items()}
    assert kinds(original, replace(save, entries=entries)) == [Kind.CHECKPOINT_KEYS]


@pytest.mark.parametrize(
    ("prefix", "wrapper"), [("module.", "DataParallel"), ("_orig_mod.", "torch.compile")]
)
def test_keys_of_a_wrapped_network_are_called_that(
    original: Observations, save: Checkpoint, prefix: str, wrapper: str
) -> None:
    entries = {k.replace("model/", f"model/{prefix}"): e for k, e in save.entries.items()}
    wrapped = replace(save, entries=entries)
    (gained,) = compare_checkpoints(saving(original, save), saving(original, wrapped))
    (lost,) = compare_checkpoints(saving(original, wrapped), saving(original, save))
    assert f"have `{prefix}` in them, as of a network in {wrapper}" in gained.message
    assert f"have lost their `{prefix}`, as of a network in {wrapper}" in lost.message


def test_a_missing_and_an_extra_save_fail(original: Observations, save: Checkpoint) -> None:
    assert kinds(original) == [Kind.CHECKPOINT_FILES]
    assert kinds(original, save, save) == [Kind.CHECKPOINT_FILES]
    assert kinds(original, save, replace(save, path="other.pt")) == [Kind.CHECKPOINT_FILES]


def test_a_file_saved_more_often_is_called_as_it_is(
    original: Observations, save: Checkpoint
) -> None:
    ours, numbered = replace(save, path="v2.pt"), replace(save, path="v3.pt")
    again, other = (
        compare_checkpoints(saving(original, ours), saving(original, ours, last))[0]
        for last in (ours, numbered)
    )
    assert again.message == "v2.pt is saved 2 times, not once"
    assert again.step == ours.rounds + 1
    assert other.message == "v#.pt is saved 2 times, not once"


def test_numbered_files_are_one_name_with_an_order(
    original: Observations, save: Checkpoint
) -> None:
    numbered = [replace(save, path=f"epoch{i}.pt") for i in (1, 2)]
    ours = saving(original, *numbered)
    assert compare_checkpoints(ours, ours) == []
    found = compare_checkpoints(
        ours, saving(original, numbered[0], replace(save, path="epoch3.pt"))
    )
    assert [(f.kind, f.original, f.rewritten) for f in found] == [
        (Kind.CHECKPOINT_FILES, "epoch2.pt", "epoch3.pt")
    ]


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (CheckpointEntry("tensor", (1, 2), "float32", "x"), Kind.CHECKPOINT_SHAPE),
        (CheckpointEntry("tensor", (16,), "bfloat16", "x"), Kind.CHECKPOINT_DTYPE),
        (CheckpointEntry("Parameter", (16,), "float32", "x"), Kind.CHECKPOINT_DTYPE),
    ],
)
def test_changed_entries_fail(
    original: Observations, save: Checkpoint, entry: CheckpointEntry, kind: Kind
) -> None:
    assert kinds(original, replace(save, entries={**save.entries, "model/fc1.bias": entry})) == [
        kind
    ]


def test_many_changed_entries_are_not_all_told(original: Observations, save: Checkpoint) -> None:
    entries = {k: replace(e, dtype="bfloat16") if e.dtype else e for k, e in save.entries.items()}
    assert len(kinds(original, replace(save, entries=entries))) == 3


def with_value(original: Observations, key: str, value: str) -> Observations:
    save = original.checkpoints[0]
    entries = {**save.entries, key: CheckpointEntry("float", value=value)}
    return saving(original, replace(save, entries=entries))


@pytest.mark.parametrize(
    ("name", "passes"), [("fused", True), ("foreach", True), ("amsgrad", False)]
)
def test_the_kernel_an_optimizer_uses_may_change(
    original: Observations, save: Checkpoint, name: str, passes: bool
) -> None:
    key = f"optimizer/param_groups/0/{name}"

    def said(value: str, kind: str) -> Observations:
        entry = CheckpointEntry(kind=kind, shape=None, dtype=None, value=value)
        return saving(original, replace(save, entries={**save.entries, key: entry}))

    before, after = said("None", "NoneType"), said("False", "bool")
    found = compare_checkpoints(before, after) + compare_checkpoint_values(before, after, (), None)
    assert (not found) is passes


def test_saved_numbers_have_the_tolerance_of_printed_ones(original: Observations) -> None:
    ours = with_value(original, "best", "0.50000000")
    near = with_value(original, "best", "0.50000001")
    far = with_value(original, "best", "0.75")
    assert [f.kind for f in compare_checkpoint_values(ours, near, (), None)] == [
        Kind.CHECKPOINT_VALUE
    ]
    assert compare_checkpoint_values(ours, near, (), Precision.FLOAT32) == []
    assert [f.kind for f in compare_checkpoint_values(ours, far, (), Precision.FLOAT32)] == [
        Kind.CHECKPOINT_VALUE
    ]


def test_a_saved_number_that_the_original_does_not_repeat_is_left_out(
    original: Observations,
) -> None:
    runs = [with_value(original, "elapsed", v) for v in ("10", "11", "12")]
    assert compare_checkpoint_values(runs[0], runs[2], [runs[1]], None) == []


def with_weight(save: Checkpoint, *same_as: str) -> Checkpoint:
    entry = CheckpointEntry("tensor", (2,), "float32", "".join(same_as), same_as=same_as)
    return replace(save, entries={"model/fc.weight": entry})


def test_a_saved_tensor_that_is_no_longer_the_parameter_fails_in_the_numeric_tier(
    original: Observations, save: Checkpoint
) -> None:
    live, copied = with_weight(save, "Net.fc.weight"), with_weight(save)
    ours, near = saving(original, live), [saving(original, live)] * 2
    assert compare_checkpoint_values(ours, ours, near, Precision.BFLOAT16) == []
    (finding,) = compare_checkpoint_values(ours, saving(original, copied), near, Precision.BFLOAT16)
    assert (finding.kind, finding.fails) == (Kind.CHECKPOINT_VALUE, True)
    assert (finding.tensor, finding.original) == ("model/fc.weight", "Net.fc.weight")
    assert "is not Net.fc.weight as the last step left it" in finding.message


def test_weights_that_are_saved_at_another_moment_fail_in_the_numeric_tier(
    original: Observations, save: Checkpoint
) -> None:
    """Before they are trained further, say: as often, and each time what the network weighs."""

    def saved(rounds: int, digest: str) -> Observations:
        entry = CheckpointEntry("tensor", (2,), "float32", digest, same_as=("Net.fc.weight",))
        return saving(original, replace(save, rounds=rounds, entries={"fc.weight": entry}))

    ours, near = saved(16, "of 16"), [saved(16, "of 16, rounded")] * 2
    assert compare_checkpoint_values(ours, near[0], near, Precision.FLOAT32) == []
    (finding,) = compare_checkpoint_values(ours, saved(8, "of 8"), near, Precision.FLOAT32)
    assert (finding.kind, finding.step) == (Kind.CHECKPOINT_VALUE, 9)
    assert finding.message.endswith(
        "fc.weight is saved after round 8, in the original after round 16"
    )
    frozen = saved(8, "of 16")
    assert compare_checkpoint_values(ours, frozen, near, Precision.FLOAT32) == []
    best = [*near, saved(12, "of 12")]  # rounding chooses which weights are the best
    assert compare_checkpoint_values(ours, saved(8, "of 8"), best, Precision.FLOAT32) == []


def test_a_saved_count_is_the_same_whichever_network_has_counted_as_far(
    original: Observations, save: Checkpoint
) -> None:
    """Of clients, each with a copy, one has counted as many batches as the server that is saved."""

    def saved(*same_as: str) -> Observations:
        entry = CheckpointEntry("tensor", (), "int64", "of 4", same_as=same_as)
        return saving(original, replace(save, entries={"bn.num_batches_tracked": entry}))

    ours, other = saved("Net.bn.num_batches_tracked"), saved()
    for before, after in ((ours, other), (other, ours)):
        assert compare_checkpoint_values(before, after, [before], Precision.FLOAT32) == []


@pytest.mark.parametrize(
    ("moved", "apart", "fails"), [(False, 1e-7, False), (False, 1e-2, True), (True, 1e-7, True)]
)
def test_an_average_of_what_has_not_moved_is_that_but_for_rounding(
    original: Observations, save: Checkpoint, moved: bool, apart: float, fails: bool
) -> None:
    from safetensors.numpy import save_file

    start = original.snapshot(0)
    assert start is not None
    name, weight = "Net.fc1.weight", (original.tensors(start) or {})["Net.fc1.weight"]
    save_file({"0": weight * (1 + apart)}, str(original.folder / "saved.safetensors"))
    shape, digest = weight.shape, "moved" if moved else start.hashes[name]
    own = CheckpointEntry("tensor", shape, "float32", "own", stored_as="0")
    live = CheckpointEntry("tensor", shape, "float32", digest, same_as=(name,))
    averaged, loaded = (
        replace(
            saving(original, replace(save, entries={"ema": entry})),
            saved_file="saved.safetensors" if entry.stored_as else None,
        )
        for entry in (own, live)
    )
    for ours, other in ((averaged, loaded), (loaded, averaged)):
        found = compare_checkpoint_values(ours, other, [ours], Precision.FLOAT32)
        assert bool(found) == fails


@pytest.mark.parametrize(
    ("step", "loaded", "fails"), [(1e-8, 0.0, False), (1e-4, 0.0, True), (1e-8, 1e-4, True)]
)
def test_an_average_of_what_moves_by_rounding_alone_is_that_too(
    original: Observations, save: Checkpoint, step: float, loaded: float, fails: bool
) -> None:
    """Such as the bias of a convolution before BatchNorm, unless the script has ``loaded`` another."""
    from safetensors.numpy import save_file

    start, name = original.snapshots[0], "Net.fc1.weight"
    weights = dict(original.tensors(start) or {})
    weight, size = weights[name], float((weights[name] ** 2).sum()) ** 0.5
    save_file({"0": weight * (1 + 1e-7)}, str(original.folder / "saved.safetensors"))
    weights[name] = weight * (1 + step + loaded)
    save_file(weights, str(original.folder / "end.safetensors"))
    steps = [
        replace(one, parameters={name: replace(one.parameters[name], update_norm=step * size)})
        for one in original.steps
    ]
    run = replace(
        original,
        steps=tuple(steps),
        snapshots=(start, replace(original.snapshots[-1], file="end.safetensors")),
    )
    own = CheckpointEntry("tensor", weight.shape, "float32", "own", stored_as="0")
    live = CheckpointEntry("tensor", weight.shape, "float32", "moved", same_as=(name,))
    averaged = replace(
        saving(run, replace(save, entries={"ema": own})), saved_file="saved.safetensors"
    )
    other = replace(saving(run, replace(save, entries={"ema": live})), saved_file=None)
    found = compare_checkpoint_values(averaged, other, [averaged], Precision.FLOAT32)
    assert bool(found) == fails


def test_what_equals_a_parameter_by_chance_may_differ(
    original: Observations, save: Checkpoint
) -> None:
    live, copied = with_weight(save, "Net.fc.bias", "Net.bn.bias"), with_weight(save, "Net.bn.bias")
    near = [saving(original, copied)]
    ours = saving(original, live)
    assert compare_checkpoint_values(ours, saving(original, copied), near, Precision.FLOAT32) == []
    other = saving(original, with_weight(save))
    assert compare_checkpoint_values(ours, other, [other], Precision.FLOAT32) == []


def test_of_an_average_that_is_the_network_a_weight_is_named(
    original: Observations, save: Checkpoint
) -> None:
    """That both have counted no batches says less, though it is the first that is no longer the same."""

    def saved(weight: CheckpointEntry, *counts_like: str) -> Observations:
        count = CheckpointEntry("tensor", (), "int64", str(counts_like), same_as=counts_like)
        entries = {"ema/bn.num_batches_tracked": count, "ema/fc.weight": weight}
        return saving(original, replace(save, entries=entries))

    own = CheckpointEntry("tensor", (2,), "float32", "own", stored_as="own")
    ours = saved(own, "Net.frozen.num_batches_tracked")
    other = saved(replace(own, sha256="live", same_as=("Net.fc.weight",)))
    first, second = (
        f
        for f in compare_checkpoint_values(ours, other, [ours], Precision.FLOAT32)
        if f.step is not None
    )
    assert (first.tensor, second.tensor) == ("ema/fc.weight", "ema/bn.num_batches_tracked")


def test_a_network_saved_as_a_whole_is_in_the_mode_it_was_in(
    original: Observations, save: Checkpoint
) -> None:
    told = [
        saving(original, replace(save, entries={"": CheckpointEntry(kind="Net", value=mode)}))
        for mode in ("in eval mode", "in training mode")
    ]
    (finding,) = compare_checkpoint_values(*told, (), None)
    assert finding.kind is Kind.CHECKPOINT_VALUE
    assert "what is saved is in training mode, not in eval mode" in finding.message


def test_attributes_of_what_is_saved_whole_are_compared_where_both_have_them(
    original: Observations, save: Checkpoint
) -> None:
    def whole(**attributes: object) -> Observations:
        entries = {
            f"Tree().{name}": CheckpointEntry(type(value).__name__, value=repr(value))
            for name, value in attributes.items()
        }
        return saving(original, replace(save, entries={**save.entries, **entries}))

    before = whole(accuracies=[0.5, 0.25], depth=3)
    for same in (whole(depth=3), whole(accuracies=(0.5, 0.25), depth=3, cache={})):
        assert compare_checkpoints(before, same) == []
    assert compare_checkpoint_values(before, whole(depth=3), (), None) == []
    for other in (whole(accuracies=[]), whole(accuracies=[0.5, 0.75]), whole(depth=4)):
        (finding,) = compare_checkpoint_values(before, other, (), None)
        assert finding.kind is Kind.CHECKPOINT_VALUE
        assert finding.fails


def test_networks_in_what_is_saved_whole_have_to_have_their_keys(
    original: Observations, save: Checkpoint
) -> None:
    def whole(*keys: str) -> Observations:
        weight = CheckpointEntry("tensor", (2,), "float32", "x", same_as=("Net.a",))
        entries = dict.fromkeys(keys, weight)
        return saving(original, replace(save, entries=entries))

    net = whole("Agent().net/Net()/a", "Agent().net/Net()/b")
    assert compare_checkpoints(net, net) == []
    assert compare_checkpoints(net, whole()) == []  # it has no such attribute
    for less in (whole("Agent().net/Net()/a"), whole("Agent().net/Net()/module.a")):
        assert compare_checkpoints(net, less)[0].kind is Kind.CHECKPOINT_KEYS


def test_of_a_long_value_what_differs_is_told(original: Observations, save: Checkpoint) -> None:
    def with_losses(losses: list[float]) -> Observations:
        entries = {"losses": CheckpointEntry("str", value=repr(losses))}
        return saving(original, replace(save, entries=entries))

    losses = [place + 0.5 for place in range(200)]
    other = [*losses[:-1], 1e3]
    (finding,) = compare_checkpoint_values(with_losses(losses), with_losses(other), (), None)
    assert "has 1000.0, not 199.5" in finding.message
    assert len(finding.message) < 200


@pytest.mark.parametrize("path", ["a.pt", "runs/1/a.pt"])
@pytest.mark.parametrize("key", ["mean", ""])
def test_what_lies_in_one_folder_does_not_belong_together(
    original: Observations, save: Checkpoint, path: str, key: str
) -> None:
    from safetensors.numpy import save_file

    def with_mean(mean: float, folder: str) -> Observations:
        place = original.folder / folder
        place.mkdir()
        tensors = {"0": np.full(9, 1e4, np.float32), "1": np.full(1, mean, np.float32)}
        save_file(tensors, str(place / "saved.safetensors"))
        big, small = (
            CheckpointEntry("tensor", tensors[name].shape, "float32", folder, stored_as=name)
            for name in "01"
        )
        saves = (
            replace(save, path="runs/1/images.pt", entries={"images": big}),
            replace(save, path=path, entries={key: small}),
        )
        return replace(saving(original, *saves), folder=place, saved_file="saved.safetensors")

    run = with_mean(1.0, "ours")
    (finding,) = compare_checkpoint_values(run, with_mean(1.1, "theirs"), [run], Precision.FLOAT32)
    told = _told_name(path, key)
    assert finding.message.startswith(f"saved tensors of {told}: 10 % longer")


def test_of_a_save_that_neighbours_do_not_make_it_is_not_known_how_far_rounding_goes(
    original: Observations, save: Checkpoint
) -> None:
    """The best for the second time, by an accuracy that is the better one as it happens to be rounded."""
    from safetensors.numpy import save_file

    def saved(folder: str, *values: float) -> Observations:
        place = original.folder / folder
        place.mkdir()
        tensors = {str(n): np.full(9, value, np.float32) for n, value in enumerate(values)}
        save_file(tensors, str(place / "saved.safetensors"))
        entries = [CheckpointEntry("tensor", (9,), "float32", folder, stored_as=n) for n in tensors]
        saves = (replace(save, path="best.pt", entries={"exp_avg": entry}) for entry in entries)
        return replace(saving(original, *saves), folder=place, saved_file="saved.safetensors")

    ours, far = saved("ours", 1.0, 2.0), saved("far", 1.0, 2.2)
    twice, once = (
        [saved(f"twice{n}", 1.0, 2.0) for n in "ab"],
        [saved(f"once{n}", 1.0) for n in "ab"],
    )
    assert [f.fails for f in compare_checkpoint_values(ours, far, twice, Precision.FLOAT32)] == [
        True
    ]
    assert [f.fails for f in compare_checkpoint_values(ours, far, [], Precision.FLOAT32)] == [True]
    (told,) = compare_checkpoint_values(ours, far, [*once, twice[0]], Precision.FLOAT32)
    assert not told.fails
    assert told.message.startswith("saved tensors of best.pt, save 2: not compared")
    wrong = saved("wrong", 1.1, 2.0)
    found = compare_checkpoint_values(ours, wrong, once, Precision.FLOAT32)
    assert [f.fails for f in found] == [True, False]


def _told_name(path: str, key: str) -> str:
    save = f"{path.replace('1', '#')}, save 1"
    return f"{save}: {key}" if key else save
