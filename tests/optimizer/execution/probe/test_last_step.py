"""A training ends where its last step left it, whatever weights are loaded then."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

pytestmark = pytest.mark.torch

NAMES = ("Sequential.0.weight", "Sequential.1.running_mean")


def trained(steps: int = 3):
    """A model after so many steps, and what it was after the first."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = {}
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.arange(12.0).view(4, 3).sin()).square().sum().backward()
        optimizer.step()
        first = first or copy.deepcopy(model.state_dict())
    return model, first


def ends(run):
    last = run.tensors(run.snapshot(run.rounds)) | run.buffers()
    return [last[name].tolist() for name in NAMES]


def test_what_is_loaded_after_the_last_step_is_not_the_end(recorded):
    def loading():
        model, first = trained()
        model.load_state_dict(first)

    assert ends(recorded(loading)) == ends(recorded(trained))


def test_what_is_loaded_before_a_step_is_trained(recorded):
    def loading():
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 3).cumsum(0)).square().sum().backward()
            optimizer.step()
            first = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
            model.load_state_dict(first)

    # All is zero before the last step, and so is every gradient then.
    assert ends(recorded(loading))[0] == [[0.0] * 3] * 2


def test_what_is_copied_in_by_hand_and_loaded_back_is_not_the_end(recorded):
    def swapping(*, best: bool):
        model, first = trained()
        kept = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.copy_(first[name])
        model.load_state_dict(kept)
        if best:
            model.load_state_dict(first)

    for best in (False, True):
        assert ends(recorded(lambda best=best: swapping(best=best))) == ends(recorded(trained))


def test_what_the_script_makes_of_a_step_s_weights_is_the_end(recorded):
    def clamping(*, load: bool):
        model, first = trained()
        with torch.no_grad():
            model[0].weight.clamp_(-0.01, 0.01)
        if load:
            model.load_state_dict(first)

    assert ends(recorded(lambda: clamping(load=True))) == ends(
        recorded(lambda: clamping(load=False))
    )


def test_loading_another_model_leaves_it_at_that(recorded):
    def loading():
        model, first = trained()
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).load_state_dict(first)
        with torch.no_grad():
            model[0].weight.fill_(7.0)

    assert ends(recorded(loading))[0] == [[7.0] * 3] * 2


def test_saved_from_the_model_or_from_the_copy_is_the_same(recorded, tmp_path: Path):
    def entries(*, load: bool, last: bool = False):
        def script():
            model, first = trained()
            if load:
                model.load_state_dict(first)
            torch.save(model.state_dict() if load or last else first, tmp_path / "best.pt")

        (save,) = recorded(script).checkpoints
        weight = save.entries["0.weight"]
        return weight.sha256, weight.same_as, weight.stored_as is not None

    assert entries(load=True) == entries(load=False)
    assert entries(load=True)[1:] == ((), True)
    assert entries(load=False, last=True)[1:] == ((NAMES[0],), False)


def test_saved_while_others_are_in_its_place_is_not_as_the_step_left_it(recorded, tmp_path: Path):
    """Binarized weights, averaged ones: put there by hand for an evaluation, which need not have put the trained ones back yet."""

    def entry(change):
        def script():
            model, _ = trained()
            before = model[0].weight.data
            change(model[0].weight)
            torch.save(model.state_dict(), tmp_path / "best.pt")
            model[0].weight.data = before

        (save,) = recorded(script).checkpoints
        weights, mean = (save.entries[name] for name in ("0.weight", "1.running_mean"))
        assert (mean.same_as, mean.stored_as) == ((NAMES[1],), None)
        return weights.same_as, weights.stored_as is not None

    def binarized(weight):
        weight.data = weight.data.sign() * weight.data.abs().mean()

    def put_back(weight):
        kept = weight.data.clone()
        binarized(weight)
        weight.data.copy_(kept)

    assert entry(binarized) == ((), True)
    assert entry(put_back) == entry(lambda weight: None) == ((NAMES[0],), False)


def test_of_optimizers_that_share_a_weight_the_last_one_s_step_counts(recorded, tmp_path: Path):
    def script():
        model = nn.Linear(3, 2)
        both = torch.optim.SGD(model.parameters(), lr=0.1)
        one = torch.optim.SGD([model.weight], lr=0.1)
        for optimizer in (both, one, both, one):
            model(torch.ones(4, 3)).square().sum().backward()
            optimizer.step()
        torch.save(model.state_dict(), tmp_path / "last.pt")

    (save,) = recorded(script).checkpoints
    assert save.entries["weight"].same_as == ("Linear.weight",)
    assert save.entries["bias"].same_as == ("Linear.bias",)
