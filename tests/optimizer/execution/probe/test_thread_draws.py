"""Samples that another thread makes have the numbers of those made in the main one, and leave its generator alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from torchopt_cli.optimizer.execution.probe.randomness import (  # noqa: E402
    Stream,
    isolated,
    seed_everything,
    seed_host,
)

pytestmark = pytest.mark.torch

DRAWS = {
    "rand": lambda: torch.rand(3, 2),
    "randn": lambda: torch.randn((4,), dtype=torch.float64),
    "randint": lambda: torch.randint(2, 9, (5,)),
    "randperm": lambda: torch.randperm(7),
    "rand_like": lambda: torch.rand_like(torch.ones(2, 3)),
    "randn_like": lambda: torch.randn_like(torch.ones(6), dtype=torch.float64),
    "randint_like": lambda: torch.randint_like(torch.ones(4), 2, 9),
    "randint_like up to": lambda: torch.randint_like(torch.ones(4), high=9),
    "normal": lambda: torch.normal(torch.zeros(4), torch.ones(4)),
    "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.5)),
    "multinomial": lambda: torch.ones(5).multinomial(3),
    "uniform_": lambda: torch.empty(4).uniform_(1, 2),
    "given": lambda: torch.rand(3, generator=torch.Generator().manual_seed(1)),
}


def seeded(draw):
    with isolated():
        seed_host(5)
        return draw()


def elsewhere(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_thread_draws_what_the_main_one_would(draw):
    seed_everything(0)
    here = seeded(draw)
    before = torch.get_rng_state()
    assert torch.equal(elsewhere(seeded, draw), here)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_main_thread_goes_on_drawing_meanwhile():
    """As a step does its dropout: it is not set back to where it was when the sample was begun."""
    seed_everything(0)
    expected = torch.rand(4)
    seed_everything(0)
    begun, drawn = threading.Event(), threading.Event()

    def sample():
        begun.set()
        assert drawn.wait(10)
        return torch.rand(3)

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(seeded, sample)
        assert begun.wait(10)
        first = torch.rand(2)
        drawn.set()
        assert torch.equal(made.result(), seeded(lambda: torch.rand(3)))
    assert torch.equal(torch.cat([first, torch.rand(2)]), expected)


def test_a_stream_goes_on_in_a_thread():
    stream = Stream(3)
    numbers = [stream.run(lambda: torch.rand(2)) for _ in range(3)]
    other = Stream(3)
    first = other.run(lambda: torch.rand(2))
    rest = [elsewhere(other.run, lambda: torch.rand(2)) for _ in range(2)]
    assert torch.equal(torch.stack(numbers), torch.stack([first, *rest]))
