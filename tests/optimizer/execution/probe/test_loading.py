"""Loaders give the same batches, whichever process makes them, and leave the script's own draws alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from torchopt_cli.optimizer.execution.probe.loading import AlignedLoading  # noqa: E402
from torchopt_cli.optimizer.execution.probe.patches import Patches  # noqa: E402
from torchopt_cli.optimizer.execution.probe.randomness import seed_everything  # noqa: E402

pytestmark = pytest.mark.torch


class Augmented(Dataset):
    """Draws from every generator for each sample."""

    def __len__(self) -> int:
        return 13

    def __getitem__(self, i):
        noise = torch.rand(()) + np.random.rand() + random.random()
        return torch.tensor([float(i), float(noise), float(torch.randn(4).sum())])


class Batched(Augmented):
    """Makes a batch at once."""

    def __getitems__(self, indices):
        torch.rand(len(indices))
        return [self[i] for i in indices]


class Endless(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for i in range(9):
            if info is None or i % info.num_workers == info.id:
                yield torch.tensor([float(i), float(torch.rand(()))])


class Shuffled(Sampler):
    """A sampler of the user's that draws as it goes."""

    def __iter__(self):
        for _ in range(10):
            yield random.randrange(13)

    def __len__(self) -> int:
        return 10


class Buckets:
    """Batches of the user's that are drawn all at once, when they are asked for."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __iter__(self):
        order = list(range(13))
        random.shuffle(order)
        batches = [order[i : i + 4] for i in range(0, 13, 4)]
        return iter([batches[i] for i in torch.randperm(4, generator=self.generator)])


def mix(batch):
    stacked = torch.stack(batch)
    return stacked * torch.rand(()) + random.random()


@pytest.fixture
def aligned(tmp_path):
    """Call a function under aligned loading, seeded as a run is."""

    def go(function: Callable[[], object], seed: int = 0) -> object:
        patches = Patches()
        AlignedLoading(seed, tmp_path).install(patches)
        seed_everything(seed)
        try:
            return function()
        finally:
            patches.undo()

    return go


def batches(
    workers: int, epochs: int = 3, dataset=None, persistent: bool = False, **options
) -> list[list[float]]:
    """All numbers of some epochs, and what the script draws between them."""
    options = {"batch_size": 4, **options}
    if workers:
        options |= {"multiprocessing_context": "fork", "persistent_workers": persistent}
    loader = DataLoader(dataset or Augmented(), num_workers=workers, **options)
    seen: list[list[float]] = []
    for _ in range(epochs):
        seen.append([float(x) for batch in loader for x in batch.flatten()])
        seen.append([float(torch.rand(())), float(np.random.rand()), random.random()])
    return seen


OPTIONS = {
    "shuffle": {"shuffle": True},
    "in order": {"shuffle": False, "drop_last": True},
    "generator": {"shuffle": True, "generator": "torch.Generator"},
    "collate": {"shuffle": True, "collate_fn": mix},
    "weighted": {"sampler": WeightedRandomSampler([1.0] * 13, 10)},
    "own sampler": {"sampler": Shuffled()},
    "own batches": {"batch_size": 1, "batch_sampler": Buckets()},
    "own batches by a generator": {"batch_size": 1, "batch_sampler": Buckets(torch.Generator())},
    "replacement": {"sampler": RandomSampler(Augmented(), replacement=True, num_samples=70)},
    "batched": {"dataset": Batched(), "shuffle": True},
    "subset": {"dataset": Subset(Augmented(), range(3, 12)), "shuffle": True},
    "no batches": {"batch_size": None, "shuffle": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_workers_make_no_difference(aligned, options):
    def script(workers, persistent=False):
        chosen = dict(options)
        if "generator" in chosen:
            chosen["generator"] = torch.Generator().manual_seed(3)
        return batches(workers, persistent=persistent, **chosen)

    alone = aligned(lambda: script(0))
    assert aligned(lambda: script(2)) == alone
    assert aligned(lambda: script(1, persistent=True)) == alone
    epochs = alone[::2]
    assert epochs[0] != epochs[1] != epochs[2]
    assert aligned(lambda: script(0), seed=1)[0] != alone[0]


def test_a_single_worker_streams_an_iterable_dataset_alike(aligned):
    alone = aligned(lambda: batches(0, dataset=Endless(), batch_size=2))
    assert aligned(lambda: batches(1, dataset=Endless(), batch_size=2)) == alone
    assert alone[0] != alone[2]


def test_first_batches_and_nested_loaders(aligned):
    def script(workers):
        context = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
        outer = DataLoader(Augmented(), batch_size=5, shuffle=True, **context)
        parts = random_split(Augmented(), [8, 5])
        inner = DataLoader(parts[0], batch_size=2, shuffle=True, **context)
        seen = [next(iter(outer)), next(iter(outer)), torch.rand(2)]
        for x in outer:
            seen += [x, next(iter(inner)), torch.rand(2)]
        for x, z in zip(outer, inner, strict=False):
            seen += [x, z]
        return [tensor.tolist() for tensor in seen]

    alone = aligned(lambda: script(0))
    assert aligned(lambda: script(2)) == alone
    assert alone[0] != alone[1]


def test_threads_make_no_difference(aligned):
    class Sum(Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, i):
            return torch.tensor([torch.get_num_threads()])

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert aligned(lambda: batches(0, epochs=1, dataset=Sum()))[0] == [1.0, 1.0]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_ranks_of_a_distributed_sampler_share_the_permutation_of_one_process(aligned):
    def single():
        loader = DataLoader(range(12), batch_size=6, shuffle=True)
        return [[sorted(batch.tolist()) for batch in loader] for _ in range(2)]

    def ranks(set_epoch=True):
        samplers = [DistributedSampler(range(12), 3, rank) for rank in range(3)]
        loaders = [DataLoader(range(12), batch_size=2, sampler=sampler) for sampler in samplers]
        epochs = []
        for epoch in range(2):
            for sampler in samplers:
                sampler.set_epoch(epoch if set_epoch else 0)
            steps = zip(*loaders, strict=True)
            epochs.append([sorted(int(i) for batch in step for i in batch) for step in steps])
        return epochs

    assert aligned(ranks) == aligned(single)
    forgotten = aligned(lambda: ranks(set_epoch=False))
    assert forgotten[0] == forgotten[1] == aligned(single)[0]


def test_samplers_get_their_generator_back(aligned):
    generator = torch.Generator().manual_seed(1)
    state = generator.get_state()
    sampler = RandomSampler(range(5), generator=generator)

    def script():
        list(DataLoader(range(5), sampler=sampler, generator=generator))
        return list(sampler)

    assert sorted(aligned(script)) == list(range(5))
    assert sampler.generator is generator
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("kind", ["script's", "weighted"])
def test_a_sampler_without_a_loader_draws_what_it_would_draw_in_one(aligned, kind):
    def made():
        class Drawn(Sampler[int]):
            def __iter__(self):
                for _ in range(4):
                    yield (
                        random.randrange(9) * 100
                        + np.random.randint(9) * 10
                        + int(torch.randint(9, ()))
                    )

        return Drawn() if kind == "script's" else WeightedRandomSampler([1.0] * 900, 5)

    def passes(loaded):
        sampler = made()
        source = DataLoader(range(900), 1, sampler=sampler) if loaded else sampler
        drawn = [[int(i) for i in source] for _ in range(3)]
        return [*drawn, random.random(), float(torch.rand(()))]

    loaded = aligned(lambda: passes(True))
    assert aligned(lambda: passes(False)) == loaded
    assert len({tuple(one) for one in loaded[:3]}) == 3


def test_classes_of_samplers_are_left_as_they_are_afterwards(aligned):
    aligned(lambda: None)
    assert "__init_subclass__" not in vars(Sampler)
