"""Draws depend on their purpose."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torchopt_cli.optimizer.execution.probe import randomness  # noqa: E402
from torchopt_cli.optimizer.execution.probe.patches import Patches  # noqa: E402
from torchopt_cli.optimizer.execution.probe.randomness import (  # noqa: E402
    Stream,
    derive,
    draw_on_host,
    isolated,
    seed_everything,
    seed_host,
)


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_seeds_differ_by_purpose_and_are_the_same_in_every_process():
    assert derive(0, "sample", 1, 2) == 954110325656709080
    assert len({derive(s, e, i) for s in range(5) for e in range(5) for i in range(5)}) == 125


def test_seeding_reaches_all_generators():
    seed_everything(7)
    first = draws()
    seed_host(7)
    assert draws() == first
    seed_host(8)
    assert draws() != first


def test_what_is_drawn_inside_does_not_show_outside():
    generator = torch.Generator().manual_seed(1)
    seed_host(3)
    expected = draws(), float(torch.rand((), generator=generator))
    generator.manual_seed(1)
    seed_host(3)
    with isolated([generator]):
        seed_host(99)
        torch.rand((), generator=generator)
        draws()
    assert (draws(), float(torch.rand((), generator=generator))) == expected


def test_a_stream_goes_on_where_it_stopped():
    seed_host(5)
    whole = [draws(), draws()]
    stream = Stream(5)
    seed_host(1)
    before = draws()
    parts = [stream.run(draws)]
    seed_host(1)
    assert draws() == before
    parts.append(stream.run(draws))
    assert parts == whole


@pytest.fixture
def on_host():
    """Devices other than the CPU draw on it; ``meta`` stands for one."""
    patches = Patches()
    draw_on_host(patches)
    yield
    patches.undo()


@pytest.mark.parametrize(
    "draw",
    [
        lambda device: torch.randn(2, 3, device=device),
        lambda device: torch.randn((2, 3), device=device, dtype=torch.float64, requires_grad=True),
        lambda device: torch.rand_like(torch.empty(2, 3, device=device)),
        lambda device: torch.randint(0, 9, (2, 3), device=device),
        lambda device: torch.randperm(6, device=device),
        lambda device: torch.empty(2, 3, device=device).normal_(0, 0.02),
        lambda device: torch.nn.init.kaiming_uniform_(
            torch.nn.Parameter(torch.empty(2, 3, device=device))
        ),
        lambda device: torch.nn.Linear(3, 2, device=device).weight,
        lambda device: torch.normal(0.0, 1.0, (2, 3), device=device),
    ],
)
def test_a_draw_on_a_device_advances_the_generator_as_on_the_cpu(on_host, draw):
    seed_host(4)
    expected = draw("cpu")
    after = torch.rand(3)
    seed_host(4)
    drawn = draw("meta")
    assert torch.equal(torch.rand(3), after)
    assert drawn.device.type == "meta"
    assert (drawn.shape, drawn.dtype) == (expected.shape, expected.dtype)
    assert drawn.requires_grad == expected.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.randn_like(x),
        lambda x: torch.randn(x.shape, dtype=x.dtype, device=x.device),
        lambda x: torch.empty_like(x).normal_(1.0, 0.5),
        lambda x: torch.normal(torch.zeros_like(x), 1.0),
        lambda x: torch.normal(0.0, 1.0, x.shape, dtype=x.dtype, device=x.device),
        lambda x: torch.rand_like(x),
        lambda x: torch.rand(x.shape, dtype=x.dtype, device=x.device),
        lambda x: torch.empty_like(x).uniform_(-2, 3),
        lambda x: torch.empty_like(x).uniform_(),
    ],
)
def test_draws_in_half_precision_are_those_of_float32_rounded(monkeypatch, draw, dtype):
    # The CPU stands for a device whose tensors have values.
    monkeypatch.setattr(randomness, "_elsewhere", lambda device: True)
    patches = Patches()
    draw_on_host(patches)
    try:
        seed_host(4)
        expected = draw(torch.empty(5000))
        after = torch.rand(3)
        seed_host(4)
        drawn = draw(torch.empty(5000, dtype=dtype))
        assert torch.equal(torch.rand(3), after)
    finally:
        patches.undo()
    assert drawn.dtype is dtype
    torch.testing.assert_close(drawn.float(), expected, rtol=torch.finfo(dtype).eps, atol=1e-5)
    ends = {"rand_like": 1.0, "rand": 1.0, "uniform_": float(expected.max().ceil())}
    end = next((ends[name] for name in draw.__code__.co_names if name in ends), torch.inf)
    assert float(drawn.max()) < end


def test_draws_from_a_generator_or_into_an_output_are_left_alone(on_host):
    generator = torch.Generator().manual_seed(2)
    expected = torch.randn(3, generator=torch.Generator().manual_seed(2))
    assert torch.equal(torch.randn(3, generator=generator), expected)
    out = torch.empty(3)
    assert torch.randn(3, out=out) is out


def test_patches_are_undone():
    before = torch.randn, torch.Tensor.normal_, "normal_" in vars(torch.Tensor)
    patches = Patches()
    draw_on_host(patches)
    assert torch.randn is not before[0]
    patches.undo()
    assert (torch.randn, torch.Tensor.normal_, "normal_" in vars(torch.Tensor)) == before
