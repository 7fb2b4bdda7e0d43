"""The sizes of the terms that the gradients of biases are made of."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.fc = nn.Linear(2, 1)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return self.fc(x.relu_().mean((2, 3)))


def train(scale=1.0):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (scale * net(torch.arange(100.0).view(4, 1, 5, 5).sin()).square().sum()).backward()
        optimizer.step()


def by_hand():
    torch.manual_seed(0)
    net, kept = Net(), {}
    for name in ("conv", "fc"):
        getattr(net, name).register_forward_hook(
            lambda _, __, output, name=name: kept.setdefault(name, output).retain_grad()
        )
    net(torch.arange(100.0).view(4, 1, 5, 5).sin()).square().sum().backward()
    return (
        kept["conv"].grad.abs().sum((0, 2, 3)).norm().item(),
        kept["fc"].grad.abs().sum(0).norm().item(),
    )


def test_the_first_gradients_are_told(recorded):
    conv, fc = by_hand()
    assert recorded(train).bias_sums == {
        "Net.conv.bias": (pytest.approx(conv), 4 * 3 * 3),
        "Net.fc.bias": (pytest.approx(fc), 4),
    }


def test_scaled_gradients_are_not_told(recorded):
    def scaled():
        scaler = torch.amp.GradScaler("cpu")
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler.scale(net(torch.ones(4, 1, 5, 5)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    assert recorded(scaled).bias_sums == {}


def test_what_the_sums_are_known_to_bounds_the_gradient_before_a_normalization(recorded):
    run = recorded(train)
    size, terms = run.bias_sums["Net.conv.bias"]
    left = abs(run.gradients()["Net.conv.bias"]).sum()
    assert left <= (terms - 1) * 2.0**-24 * size < 1e-3 * size


def test_gradients_of_many_losses_at_once_are_left_out(recorded):
    def at_once():
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = net(torch.arange(100.0).view(4, 1, 5, 5).sin()).square().flatten()
        given = list(net.parameters())
        gradients = torch.autograd.grad(losses, given, torch.eye(4), is_grads_batched=True)
        for parameter, gradient in zip(given, gradients, strict=True):
            parameter.grad = gradient.sum(0)
        optimizer.step()

    run = recorded(at_once)
    assert run.unobserved == ()
    assert run.bias_sums == {}
