"""What loading workers tell of the generators they start with."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from torchopt_cli.optimizer.execution.observations import WorkerStart  # noqa: E402
from torchopt_cli.optimizer.execution.probe.worker_generators import generators  # noqa: E402

pytestmark = pytest.mark.torch


class Flips(Dataset):
    """Draws from numpy's global generator, and from one of its own if it has one."""

    def __init__(self, rng=None) -> None:
        self.parts = {"flip": rng}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i):
        rng = self.parts["flip"]
        return i + float(np.random.rand() if rng is None else rng.random())


def alike(worker: int) -> None:
    np.random.seed(1)


def starts(recorded, dataset, epochs=1, **options) -> tuple[WorkerStart, ...]:
    def script():
        options.setdefault("multiprocessing_context", "fork")
        loader = DataLoader(dataset, batch_size=2, num_workers=2, **options)
        for _ in range(epochs):
            list(loader)

    return recorded(script).workers


def test_workers_start_apart_and_tell_what_is_drawn_from(recorded):
    found = starts(recorded, Flips(), epochs=2)
    assert [(w.loader, w.epoch, w.worker) for w in found] == [
        (0, e, w) for e in (0, 1) for w in (0, 1)
    ]
    assert {w.drawn for w in found} == {("numpy.random",)}
    for name in ("torch", "numpy.random", "random"):
        assert len({w.states[name] for w in found}) == 4


def test_a_constant_seed_is_seen_before_alignment_hides_it(recorded):
    found = starts(recorded, Flips(), worker_init_fn=alike)
    assert len({w.states["numpy.random"] for w in found}) == 1
    assert len({w.states["torch"] for w in found}) == 2


def test_workers_that_live_on_start_once(recorded):
    found = starts(recorded, Flips(), epochs=3, persistent_workers=True)
    assert [(w.epoch, w.worker) for w in found] == [(0, 0), (0, 1)]


@pytest.mark.slow
def test_spawned_workers_tell_too(recorded):
    found = starts(recorded, range(8), multiprocessing_context="spawn")
    assert [w.worker for w in found] == [0, 1]


@pytest.mark.parametrize(
    "rng", [random.Random(3), np.random.default_rng(3), np.random.RandomState(3)], ids=type
)
def test_generators_that_the_data_set_holds_are_copies(recorded, rng):
    found = starts(recorded, Flips(rng))
    name = "dataset.parts['flip']"
    assert {w.drawn for w in found} == {(name,)}
    assert len({w.states[name] for w in found}) == 1


def test_every_kind_of_generator_is_found_and_its_state_followed():
    class Holder:
        def __init__(self) -> None:
            self.torch = torch.Generator()
            self.both = [random.Random(1), (np.random.default_rng(1),)]
            self.system = random.SystemRandom()
            self.itself = self

    holder = Holder()
    found = dict(generators(holder))
    own = {name for name in found if name.startswith("dataset")}
    assert own == {"dataset.torch", "dataset.both[0]", "dataset.both[1][0]"}
    before = {name: state() for name, state in found.items()}
    assert {name: state() for name, state in found.items()} == before
    torch.rand(1, generator=holder.torch)
    holder.both[0].random()
    holder.both[1][0].random()
    changed = {name for name, state in found.items() if state() != before[name]}
    assert changed == own
