"""One network that is loaded anew, in the place of copies that are made anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.successors import Succession
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import Observations, Step
from torchopt_cli.optimizer.options import Tier

Run = Callable[..., Observations]
HALF = 4
"""The steps that the first copy makes."""


def second(name: str) -> str:
    return name.replace("Net.", "Net#2.")


def judged(original: Observations, other: Observations, tier: Tier = Tier.EXACT) -> Verdict:
    return judge_in_stages(
        original,
        other,
        lambda *_, **__: original,
        tier=tier,
        precision=None,
        perturbed_runs=3,
    ).verdict


def reloaded(run: Observations) -> Observations:
    """``run`` with a new optimizer for the second half of its steps."""
    steps = [replace(s, optimizer=int(s.index >= HALF)) for s in run.steps]
    return replace(run, steps=tuple(steps), optimizers=run.optimizers * 2)


def copied(run: Observations, folder: Path, of_second: Iterable[int] | None = None) -> Observations:
    """The same, with a copy of the network for the steps ``of_second``: what the first holds then is what it was left with."""
    shutil.copytree(run.folder, folder)
    chosen = set(range(HALF, len(run.steps)) if of_second is None else of_second)

    def step(one: Step) -> Step:
        if one.index not in chosen:
            return one
        named = {second(name): update for name, update in one.parameters.items()}
        return replace(one, optimizer=1, parameters=named)

    left = load_file(folder / "parameters-4.safetensors")
    last = load_file(folder / "parameters-8.safetensors")
    save_file(
        left | {second(name): value for name, value in last.items()},
        folder / "parameters-8.safetensors",
    )
    gradients = load_file(folder / "gradients")
    save_file(
        gradients | {second(name): value + 1 for name, value in gradients.items()},
        folder / "gradients",
    )
    buffers = load_file(folder / "buffers")
    stale = {name: np.zeros_like(value) for name, value in buffers.items()}
    save_file(stale | {second(n): v for n, v in buffers.items()}, folder / "buffers")
    at_four, at_eight = (run.snapshot(number) for number in (4, 8))
    assert at_four
    assert at_eight
    hashes = {**at_four.hashes, **{second(n): h for n, h in at_eight.hashes.items()}}
    (info,) = run.optimizers
    (group,) = info.groups
    return replace(
        run,
        folder=folder,
        steps=tuple(map(step, run.steps)),
        optimizers=(info, replace(info, groups=(tuple(map(second, group)),))),
        parameters={**run.parameters, **{second(n): p for n, p in run.parameters.items()}},
        snapshots=(*run.snapshots[:-1], replace(at_eight, hashes=hashes)),
    )


@pytest.mark.parametrize("tier", [Tier.EXACT, Tier.NUMERIC])
@pytest.mark.parametrize("turned", [False, True], ids=["loaded anew", "copied"])
@pytest.mark.parametrize("with_one_optimizer", [False, True])
def test_a_copy_is_the_network_that_is_loaded_anew(
    run: Run, tmp_path: Path, tier: Tier, *, turned: bool, with_one_optimizer: bool
) -> None:
    copies = copied(run(), tmp_path / "copies")
    again = run() if with_one_optimizer else reloaded(run())
    verdict = judged(again, copies, tier) if turned else judged(copies, again, tier)
    assert verdict.outcome is Outcome.EQUIVALENT
    (told,) = verdict.findings
    assert (told.kind, told.fails) == (Kind.STEPPED_PARAMETERS, False)
    assert "one after the other" in told.message


def test_an_optimizer_for_each_is_one_that_goes_on(run: Run) -> None:
    assert judged(reloaded(run()), run()).outcome is Outcome.EQUIVALENT


def test_other_weights_in_the_second_copy_are_found(run: Run, tmp_path: Path) -> None:
    copies, again = copied(run(), tmp_path / "copies"), reloaded(run())
    late = again.steps[HALF]
    name, update = next(iter(late.parameters.items()))
    changed = {**late.parameters, name: replace(update, checksum=update.checksum + 1)}
    steps = (*again.steps[:HALF], replace(late, parameters=changed), *again.steps[HALF + 1 :])
    verdict = judged(copies, replace(again, steps=steps))
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    failure = verdict.failures[0]
    assert (failure.kind, failure.step, failure.tensor) == (Kind.PARAMETER, HALF + 1, name)


def test_another_setting_of_a_later_optimizer_is_found(run: Run, tmp_path: Path) -> None:
    copies = copied(run(), tmp_path / "copies")
    first, info = copies.optimizers
    settings = ({**info.hyperparameters[0], "weight_decay": "0.5"},)
    copies = replace(copies, optimizers=(first, replace(info, hyperparameters=settings)))
    (failure,) = judged(copies, run()).failures
    assert (failure.kind, failure.step) == (Kind.OPTIMIZER_SETTINGS, HALF + 1)


def test_networks_that_are_trained_in_turns_stay_two(run: Run, tmp_path: Path) -> None:
    in_turns = copied(run(), tmp_path / "turns", of_second=(1, 3, 5, 7))
    assert not Succession.of(in_turns, run()).one
    assert judged(in_turns, run()).outcome is Outcome.NOT_EQUIVALENT


def test_runs_with_the_same_names_are_left_alone(run: Run, tmp_path: Path) -> None:
    ours, theirs = (copied(run(), tmp_path / name) for name in ("a", "b"))
    told = Succession.of(ours, theirs)
    assert told.told(theirs) is theirs
