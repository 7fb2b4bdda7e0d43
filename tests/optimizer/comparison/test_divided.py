import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from torchopt_cli.optimizer.comparison.divided import Division
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_numeric
from torchopt_cli.optimizer.execution.observations import Observations, ParameterUpdate

from .conftest import HIDDEN, sha256

Run = Callable[..., Observations]
WHOLE, PARTS = "Net.fc1.weight", ("Net.q.weight", "Net.k.weight", "Net.v.weight")
Tensors = Mapping[str, NDArray[np.generic]]


def apart(run: Observations, folder: Path) -> Observations:
    """``run`` with the rows of one parameter as three."""
    shutil.copytree(run.folder, folder)

    def divided(tensors: Tensors) -> dict[str, NDArray[np.generic]]:
        parts = np.array_split(tensors[WHOLE], 3)
        return {n: np.ascontiguousarray(p) for n, p in zip(PARTS, parts, strict=True)} | {
            name: tensor for name, tensor in tensors.items() if name != WHOLE
        }

    def names(known: Mapping[str, object]) -> list[str]:
        return [*PARTS, *(name for name in known if name != WHOLE)]

    for file in (run.gradients_file, *(one.file for one in run.snapshots)):
        save_file(divided(load_file(folder / str(file))), folder / str(file))
    rows = {name: len(t) for name, t in load_file(folder / "gradients").items() if t.ndim}
    infos = {
        name: replace(run.parameters[WHOLE], shape=(rows[name], HIDDEN))
        if name in PARTS
        else run.parameters[name]
        for name in names(run.parameters)
    }
    snapshots = tuple(
        replace(one, hashes={n: sha256(t) for n, t in load_file(folder / str(one.file)).items()})
        for one in run.snapshots
    )
    update = ParameterUpdate(1.0, 1.0, 1)
    steps = tuple(
        replace(s, parameters={n: s.parameters.get(n, update) for n in names(s.parameters)})
        for s in run.steps
    )
    info = replace(run.optimizers[0], groups=(tuple(names(run.parameters)),))
    told = replace(run, folder=folder, parameters=infos, snapshots=snapshots, steps=steps)
    return replace(told, optimizers=(info,), checkpoints=())


@pytest.fixture
def pair(run: Run, tmp_path: Path) -> tuple[Observations, Observations]:
    """A run with three parameters, and the same with one in their place."""
    return apart(run(), tmp_path / "apart"), replace(run(), checkpoints=())


def test_a_parameter_of_the_rewrite_is_told_as_those_it_consists_of(
    pair: tuple[Observations, Observations],
) -> None:
    original, other = pair
    division = Division.of(original, other)
    assert division.parts == {WHOLE: PARTS}
    told = division.undone(other)
    assert told.optimizers[0].groups == original.optimizers[0].groups
    assert told.parameters == original.parameters
    assert told.snapshots[0].hashes == original.snapshots[0].hashes
    for ours, theirs in zip(original.snapshots, told.snapshots, strict=True):
        tensors = original.tensors(ours), told.tensors(theirs)
        assert tensors[0] is not None
        assert tensors[1] is not None
        assert tensors[0].keys() == tensors[1].keys()
        assert all((tensors[0][name] == tensors[1][name]).all() for name in tensors[0])
    assert told.gradients().keys() == original.gradients().keys()
    whole = other.steps[0].parameters[WHOLE]
    parts = [told.steps[0].parameters[name] for name in PARTS]
    assert math.hypot(*(p.update_norm for p in parts)) == pytest.approx(whole.update_norm)
    assert [note.fails for note in division.notes()] == [False]


def test_only_what_starts_as_they_do_consists_of_them(
    pair: tuple[Observations, Observations],
) -> None:
    original, other = pair
    first = load_file(other.folder / str(other.snapshots[0].file))
    save_file(
        first | {WHOLE: first[WHOLE][::-1].copy()}, other.folder / str(other.snapshots[0].file)
    )
    assert Division.of(original, other).parts == {}
    assert Division.of(original, original).undone(original) is original
    assert Division.of(other, other).parts == {}


def test_a_part_that_is_wrong_is_told(pair: tuple[Observations, Observations]) -> None:
    original, other = pair
    gradients = load_file(other.folder / "gradients")
    rows = len(original.gradients()[PARTS[0]])
    gradients[WHOLE][rows : 2 * rows] *= 2
    save_file(gradients, other.folder / "gradients")
    told = Division.of(original, other).undone(other)
    verdict = judge_numeric(original, [], [original, original], told, Precision.FLOAT32)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    found = [f for f in verdict.failures if f.kind is Kind.GRADIENT]
    assert [f.tensor for f in found] == [PARTS[1]]


def test_states_are_those_of_the_rows(pair: tuple[Observations, Observations]) -> None:
    original, other = pair
    state = {f"optimizer 0/exp_avg/{WHOLE}": other.gradients()[WHOLE]}
    state[f"optimizer 0/step/{WHOLE}"] = np.array(4.0, np.float32)
    save_file(state, other.folder / "state")
    told = Division.of(original, other).undone(replace(other, optimizer_state_file="state"))
    found = told.optimizer_state()
    assert {name.rpartition("/")[2] for name in found} == set(PARTS)
    ours = original.gradients()
    assert all((found[f"optimizer 0/exp_avg/{name}"] == ours[name]).all() for name in PARTS)
    assert all(found[f"optimizer 0/step/{name}"] == 4.0 for name in PARTS)
