"""The parameters that steps leave, lent from one run to another."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402


def train(rate, steps=3, width=3):
    """A script that trains two layers, each by an optimizer of its own, and tells what they give before each step."""
    said = []

    def script():
        torch.manual_seed(0)
        nets = [nn.Linear(5, width), nn.Linear(5, width)]
        optimizers = [
            torch.optim.SGD(net.parameters(), lr=rate * (1 + n), momentum=0.9)
            for n, net in enumerate(nets)
        ]
        for _ in range(steps):
            for net, optimizer in zip(nets, optimizers, strict=True):
                optimizer.zero_grad()
                loss = net(torch.eye(5)).square().mean()
                loss.backward()
                optimizer.step()
                said.append(loss.item())

    script.said = said
    return script


def norms(run):
    return [[one.update_norm for one in step.parameters.values()] for step in run.steps]


def test_an_original_goes_on_from_each_step_of_another_run_and_makes_its_own_from_there(recorded):
    lender = recorded(train(0.2), keep_steps=True)
    plain = recorded(train(0.1))
    run = recorded(train(0.1), stepped_with=str(lender.folder))
    assert run.steps_lent == 6
    assert run.losses == lender.losses != plain.losses
    assert [snapshot.hashes for snapshot in run.snapshots] == [
        snapshot.hashes for snapshot in lender.snapshots
    ]
    for own, lent in zip(norms(run), norms(lender), strict=True):
        assert own == pytest.approx([norm / 2 for norm in lent], rel=1e-4)


def test_what_is_saved_after_a_step_is_what_the_step_has_left(recorded, tmp_path):
    def script():
        torch.manual_seed(0)
        net = nn.Linear(5, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.eye(5)).square().mean().backward()
        optimizer.step()
        torch.save(net.state_dict(), tmp_path / "net.pt")

    lender = recorded(script, keep_steps=True)
    run = recorded(script, stepped_with=str(lender.folder))
    assert run.checkpoints == lender.checkpoints


@pytest.mark.parametrize("other", [train(0.1, width=4), train(0.1, steps=2), train(0.1, steps=4)])
def test_one_that_makes_other_steps_is_not_in_step(recorded, other):
    lender = recorded(train(0.1), keep_steps=True)
    assert recorded(other, stepped_with=str(lender.folder)).steps_lent == 0


def test_more_than_may_be_kept_is_not_lent(recorded):
    lender = recorded(train(0.2), keep_steps=True, snapshot_bytes=100)
    assert recorded(train(0.1), stepped_with=str(lender.folder)).steps_lent == 0


@pytest.mark.parametrize("after", [0, 2])
def test_each_step_may_be_off_by_a_rounding_error(recorded, after):
    lender = recorded(train(0.2), keep_steps=True)
    perturb = {"dtype": "float32", "seed": 1, "scale": 100.0, "after": after}
    script = train(0.1)
    run = recorded(script, stepped_with=str(lender.folder), perturb=perturb)
    assert run.steps_lent == 6
    apart = [abs(a - b) / b for a, b in zip(run.losses, lender.losses, strict=True)]
    assert all(one < 1e-4 for one in apart)
    assert [one > 0.0 for one in apart[::2]] == [False] * after + [True] * (3 - after)
