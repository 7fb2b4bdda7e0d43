"""What asks for fresh entropy, or takes the time for a seed, starts alike in all observed runs."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torchopt_cli.optimizer.execution.probe.entropy import Entropy  # noqa: E402
from torchopt_cli.optimizer.execution.probe.patches import Patches  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def drawn() -> Iterator[Callable[..., list[float]]]:
    """What a function draws in a run of that seed."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()

    class Importer:
        def after_import(self, name: str, action: Callable[[object], None]) -> None:
            action(sys.modules[name])

    def go(draw: Callable[[], list[float]], seed: int = 0) -> list[float]:
        patches = Patches()
        Entropy(seed).install(patches, SimpleNamespace(importer=Importer()))
        try:
            return draw()
        finally:
            patches.undo()

    yield go
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def numpy_generators() -> list[float]:
    return [np.random.default_rng().random(), np.random.default_rng().random()]


def numpy_states() -> list[float]:
    return [np.random.RandomState().rand(), np.random.RandomState().rand()]


def python_generators() -> list[float]:
    return [random.Random().random(), random.Random().random()]


def python_seeded_anew() -> list[float]:
    random.seed()
    first = random.random()
    random.seed()
    return [first, random.random()]


def numpy_seeded_anew() -> list[float]:
    np.random.seed()
    first = np.random.rand()
    np.random.seed()
    return [first, np.random.rand()]


def torch_seeded_anew() -> list[float]:
    torch.seed()
    first = torch.rand(()).item()
    torch.seed()
    return [first, torch.rand(()).item()]


def seeded_by_the_time() -> list[float]:
    torch.manual_seed(int(time.time()))
    random.seed(time.time_ns())
    first = random.random()
    np.random.seed(int(time.time() * 1000) % 2**32)
    return [torch.rand(()).item(), first, np.random.rand()]


@pytest.mark.parametrize(
    "draw",
    [
        numpy_generators,
        numpy_states,
        python_generators,
        python_seeded_anew,
        numpy_seeded_anew,
        torch_seeded_anew,
        seeded_by_the_time,
    ],
)
def test_fresh_entropy_is_the_runs(drawn, draw) -> None:
    first = drawn(draw)
    assert drawn(draw) == first
    assert drawn(draw, seed=1) != first
    assert len(set(first)) == len(first)
    assert draw() != first  # nothing is left behind


def seeded() -> list[float]:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    first = [random.random(), np.random.rand(), torch.rand(()).item()]
    made = [random.Random(4).random(), np.random.default_rng(4).random()]
    return first + made


def test_seeds_of_the_script_are_left_alone(drawn) -> None:
    assert drawn(seeded) == drawn(seeded, seed=1) == seeded()


def test_names_of_temporary_files_are_left_alone(drawn) -> None:
    def names() -> list[float]:
        return [next(tempfile._RandomNameSequence())]

    assert drawn(names) != drawn(names)
