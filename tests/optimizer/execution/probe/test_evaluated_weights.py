"""The weights that one run evaluates with, lent to another."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402


class Counted(nn.Module):
    """Counts its calls in a buffer, and scales by another."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        self.calls += 1
        return self.fc(x) * self.scale


def train(rate, nets=1, fails=False):
    """A script that trains, and evaluates each of its networks twice after either epoch."""
    said = []

    def script():
        torch.manual_seed(0)
        models = [Counted() for _ in range(nets)]
        optimizer = torch.optim.SGD(models[0].parameters(), lr=rate)
        for _ in range(2):
            models[0].train()
            models[0](torch.ones(4, 5)).square().mean().backward()
            optimizer.step()
            models[0].scale += rate
            for net in models:
                net.eval()
                if fails:
                    with pytest.raises(RuntimeError):
                        net(torch.ones(1, 2))
                for x in (torch.ones(2, 5), torch.eye(5)):
                    with torch.no_grad():
                        said.append(net(x).flatten().tolist())
            said.append(int(models[0].calls))

    script.said = said
    return script


def outputs(run):
    return [tuple(output.mean for output in call.outputs) for call in run.eval_calls]


def test_an_original_evaluates_with_the_weights_of_another_run_and_trains_with_its_own(recorded):
    lender = recorded(train(0.2), keep_evaluated=True)
    plain, script = recorded(train(0.1)), train(0.1)
    run = recorded(script, evaluated_with=str(lender.folder))
    assert outputs(lender) == outputs(recorded(train(0.2)))
    assert outputs(run) == outputs(lender) != outputs(plain)
    assert (run.losses, run.snapshots[-1].hashes) == (plain.losses, plain.snapshots[-1].hashes)
    assert [said for said in script.said if isinstance(said, int)] == [3, 6]


def test_a_call_that_fails_gives_the_weights_back(recorded):
    lender = recorded(train(0.2, fails=True), keep_evaluated=True)
    run = recorded(train(0.1, fails=True), evaluated_with=str(lender.folder))
    plain = recorded(train(0.1, fails=True))
    assert outputs(run) == outputs(lender)
    assert run.snapshots[-1].hashes == plain.snapshots[-1].hashes


def test_nothing_is_lent_of_networks_that_cannot_be_told_apart(recorded):
    """But for what they have in common, which here is nothing that was trained."""
    lender = recorded(train(0.2, nets=2), keep_evaluated=True)
    run = recorded(train(0.1, nets=2), evaluated_with=str(lender.folder))
    assert outputs(run) == outputs(recorded(train(0.1, nets=2)))


def test_other_networks_keep_their_weights(recorded):
    def script(width):
        def go():
            torch.manual_seed(0)
            net = nn.Linear(width, 3)
            net(torch.ones(2, width)).mean().backward()
            torch.optim.SGD(net.parameters(), lr=0.1).step()
            net.eval()(torch.ones(2, width))

        return go

    lender = recorded(script(4), keep_evaluated=True)
    run = recorded(script(5), evaluated_with=str(lender.folder))
    assert np.allclose(run.eval_outputs()["0.0"], recorded(script(5)).eval_outputs()["0.0"])


def test_no_more_is_kept_than_may_be(recorded):
    lender = recorded(train(0.2), keep_evaluated=True, snapshot_bytes=10)
    run = recorded(train(0.1), evaluated_with=str(lender.folder))
    assert outputs(run) == outputs(recorded(train(0.1)))
