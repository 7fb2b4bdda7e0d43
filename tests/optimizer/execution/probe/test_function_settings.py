"""With which settings functions are called."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402


class Scale(nn.Module):
    """A normalization of the script's own."""

    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = epsilon

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def script(forward, compiled=False):
    def run():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4, eps=1e-4), Scale(4, 1e-3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        step = torch.compile(forward, backend="eager") if compiled else forward
        for _ in range(2):
            step(net, torch.ones(3, 6)).mean().backward()
            optimizer.step()
        with torch.no_grad():
            F.layer_norm(torch.ones(2, 4), (4,), eps=0.5)

    return run


def test_layers_tell_by_their_functions(recorded):
    by_layer = recorded(script(lambda net, x: net(x)))
    by_function = recorded(
        script(lambda net, x: net[2](F.layer_norm(net[0](x), (4,), *net[1].parameters(), 1e-4)))
    )
    expected = (("eps=0.0001",), ("eps=0.0001", "eps=0.5"))
    assert by_layer.function_settings["layer_norm"] == expected
    assert by_function.function_settings["layer_norm"] == expected
    assert by_layer.layer_settings["Sequential.2"] == "Scale(eps=0.001)"


def test_by_position_by_name_and_by_default(recorded):
    def run():
        x, y = torch.ones(2, 3), torch.tensor([0, 1])
        F.cross_entropy(x, y)
        F.cross_entropy(x, y, None, None, 1)
        F.cross_entropy(x, y, ignore_index=-1)
        F.normalize(x, eps=1e-3)
        script(lambda net, x: net(x))()

    told = recorded(run).function_settings
    assert told["cross_entropy"][0] == ("ignore_index=-100", "ignore_index=1", "ignore_index=-1")
    assert told["normalize"] == (("eps=0.001",), ("eps=0.001",))


def test_compiled_functions_work(recorded):
    """They are seen where Dynamo is imported after the hooks, which it takes for functions of torch then."""
    run = recorded(script(lambda net, x: net(x), compiled=True))
    first, every = run.function_settings["layer_norm"]
    assert set(first) <= {"eps=0.0001"}
    assert every[-1] == "eps=0.5"
    assert len(run.steps) == 2


def test_what_is_around_a_built_in_function_is_left_alone(recorded, monkeypatch):
    @functools.wraps(F.scaled_dot_product_attention)
    def around(*args, **kwargs):
        raise NotImplementedError

    monkeypatch.setattr(F, "scaled_dot_product_attention", around)
    told = recorded(script(lambda net, x: net(x))).function_settings
    assert told["layer_norm"][0] == ("eps=0.0001",)
