"""DataLoaders under aligned randomness: the same samples, whichever process makes them.

Sample ``i`` of a loader's pass ``e`` is made with the generators seeded by ``(seed, e, i)``, a batch is collated with
them seeded by its indices, and samplers draw from a stream of the pass. None of it shows in the generators of the
main process, so ``num_workers``, ``persistent_workers`` and ``prefetch_factor`` make no difference to what the script
draws elsewhere.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false
# These are the loader's internals, unchanged in shape since torch 2.0.

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data._utils import fetch, worker
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from .loader_passes import LoaderPass, LoaderPasses, length_of
from .patches import Patches
from .randomness import Stream, derive, is_isolated, isolated, permutation_seed, seed_host
from .worker_generators import FOLDER, WorkerWatch

_STREAM = "_torchopt_stream"


class Indexed:
    """What a sampler gave, with the pass it is for, on its way to the process that fetches it."""

    def __init__(self, read: LoaderPass, index: Any) -> None:
        self.read = read
        self.index = index


class AlignedLoading:
    """Patches that align what DataLoaders draw, for the run's ``seed``.

    Workers tell below ``folder`` which generators they start with.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self._seed = seed
        self._workers = folder / FOLDER
        self._passes = LoaderPasses()
        self._starting: tuple[LoaderPass, Stream] | None = None
        self._sampling: LoaderPass | None = None
        self._shuffles: Counter[LoaderPass] = Counter()
        self._outside = _ByThing()
        self._epochs: dict[int, dict[int, int]] = {}
        self._epochs_outside: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Patch the loaders of this process and of the workers it starts."""
        patches.wrap(DataLoader, "__iter__", self._iter)
        patches.wrap(_BaseDataLoaderIter, "_reset", self._reset)
        patches.wrap(_BaseDataLoaderIter, "_next_index", self._next_index)
        patches.wrap(RandomSampler, "__iter__", self._random_sampler)
        patches.wrap(DistributedSampler, "__iter__", self._distributed_sampler)
        for own in (SubsetRandomSampler, WeightedRandomSampler):
            patches.wrap(own, "__iter__", self._own_sampler)
        patches.wrap(Sampler, "__init_subclass__", self._sampler_class)
        patches.wrap(
            worker, "_worker_loop", functools.partial(_AlignedWorker, self._seed, self._workers)
        )
        align_fetching(self._seed, self._workers, patches)

    def _iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(loader):
            read = self._passes.begin(loader)
            generators = _generators(loader)
            stream = Stream(derive(self._seed, "index", read.epoch), generators)
            outer, self._starting = self._starting, (read, stream)
            try:
                with isolated(generators):
                    self._seed_start(read, generators)
                    iterator = original(loader)
            finally:
                self._starting = outer
            setattr(iterator, _STREAM, (read, stream))
            return iterator

        return wrapper

    def _reset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Where there are workers, a sampler is asked a second time for the same pass: one that draws all of it at once draws the same."""

        @functools.wraps(original)
        def wrapper(iterator, loader, *args, **kwargs):
            if self._starting is not None:
                self._seed_start(self._starting[0], _generators(loader))
            return original(iterator, loader, *args, **kwargs)

        return wrapper

    def _seed_start(self, read: LoaderPass, generators: Sequence[torch.Generator]) -> None:
        seed = derive(self._seed, "workers", read.epoch)
        seed_host(seed)
        for generator in generators:
            generator.manual_seed(seed)

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(iterator):
            # Workers are given their first indices while the iterator is still being made.
            read, stream = self._starting or getattr(iterator, _STREAM)
            outer, self._sampling = self._sampling, read
            try:
                return Indexed(read, stream.run(lambda: original(iterator)))
            finally:
                self._sampling = outer

        return wrapper

    def _random_sampler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(sampler):
            own, sampler.generator = sampler.generator, torch.Generator()
            sampler.generator.manual_seed(self._permutation(self._shuffle(sampler)))
            indices = original(sampler)
            try:
                first = list(itertools.islice(indices, 1))  # by then it has taken its generator
            finally:
                sampler.generator = own
            yield from first
            yield from indices

        return wrapper

    def _shuffle(self, sampler: Any) -> int:
        """Which shuffle ``sampler`` begins: a pass's is the pass's own, and any more in it are those of the next ones."""
        if self._sampling is None:
            return self._outside.next(sampler.data_source)
        self._shuffles[self._sampling] += 1
        return self._sampling.epoch + self._shuffles[self._sampling] - 1

    def _sampler_class(self, original: Callable[..., Any]) -> Any:
        """Classes of the script, from now on."""

        def made(cls, **named):
            super(Sampler, cls).__init_subclass__(**named)
            if "__iter__" in vars(cls) and not cls.__module__.startswith("torch."):
                cls.__iter__ = self._own_sampler(cls.__iter__)

        return classmethod(made)

    def _own_sampler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What a sampler draws without a loader is what it would draw in the pass of one."""

        @functools.wraps(original)
        def wrapper(sampler):
            if self._sampling is not None or self._starting is not None or is_isolated():
                return original(sampler)
            return self._without_loader(sampler, original)

        return wrapper

    def _without_loader(self, sampler: Any, original: Callable[..., Any]) -> Iterator[Any]:
        own = getattr(sampler, "generator", None)
        number = self._outside.next(sampler)
        others = [own] if isinstance(own, torch.Generator) else []
        stream = Stream(derive(self._seed, "index", number), others)
        indices = stream.run(lambda: iter(original(sampler)))
        end = object()
        while (index := stream.run(lambda: next(indices, end))) is not end:
            yield index

    def _distributed_sampler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(sampler):
            # The sampler seeds itself by seed + epoch. All ranks together then take RandomSampler's permutation of
            # the same pass: epochs are counted as they are set, so that one that is never set is always the first.
            if self._sampling is None:
                epochs = self._epochs_outside.setdefault(sampler, {})
            else:
                epochs = self._epochs.setdefault(self._sampling.loader, {})
            epoch = epochs.setdefault(sampler.epoch, len(epochs))
            own, sampler.seed = sampler.seed, self._permutation(epoch) - sampler.epoch
            try:
                return original(sampler)
            finally:
                sampler.seed = own

        return wrapper

    def _permutation(self, epoch: int) -> int:
        return permutation_seed(self._seed, epoch)


class _ByThing:
    """Counts what is done with each thing, whichever objects do it."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Any, itertools.count[int]] = WeakKeyDictionary()
        self._by_length: dict[int | None, itertools.count[int]] = {}

    def next(self, thing: Any) -> int:
        """How often this was asked for ``thing`` before; for one that is not hashable, or goes by its value, for any as long."""
        try:
            counts = self._counts.setdefault(thing, itertools.count())
        except TypeError:
            counts = self._by_length.setdefault(length_of(thing), itertools.count())
        return next(counts)


def align_fetching(seed: int, workers: Path, patches: Patches) -> None:
    """Patch how samples are fetched, in this process; ``workers`` is where they tell of their generators."""
    watch = WorkerWatch(workers)
    for fetcher, aligned in (
        (fetch._MapDatasetFetcher, _map_fetch),
        (fetch._IterableDatasetFetcher, _iterable_fetch),
    ):
        patches.wrap(fetcher, "fetch", functools.partial(aligned, seed, watch))


class _AlignedWorker:
    """The main function of a worker process, with aligned fetching.

    A forked worker is patched already. A spawned one has torch's own ``loop``, which therefore does not travel.
    """

    def __init__(self, seed: int, workers: Path, loop: Callable[..., None] | None = None) -> None:
        self._seed = seed
        self._workers = workers
        self._loop = loop

    def __reduce__(self) -> tuple[Any, ...]:
        return _AlignedWorker, (self._seed, self._workers)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._loop is None:
            align_fetching(self._seed, self._workers, Patches())
        (self._loop or worker._worker_loop)(*args, **kwargs)


def _generators(loader: Any) -> list[torch.Generator]:
    """The generators that the script gave to a loader and its samplers."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (loader.sampler, batch_sampler)
    owners = (loader, *samplers, *(getattr(sampler, "sampler", None) for sampler in samplers))
    found = [getattr(owner, "generator", None) for owner in owners]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _map_fetch(seed: int, workers: WorkerWatch, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(fetcher, index):
        if not isinstance(index, Indexed):
            return original(fetcher, index)
        watch = workers.of(*index.read, fetcher.dataset)
        purpose, index = (seed, "sample", index.read.epoch), index.index
        with isolated(), _one_thread():
            if not fetcher.auto_collation:
                data = _sample(fetcher.dataset, purpose, index, watch)
            elif _has_batches(fetcher.dataset):
                seed_host(derive(*purpose, tuple(index)))
                data = watch(functools.partial(fetcher.dataset.__getitems__, index))
            else:
                data = [_sample(fetcher.dataset, purpose, i, watch) for i in index]
            seed_host(derive(*purpose, "collate", index))
            return fetcher.collate_fn(data)

    return wrapper


def _iterable_fetch(
    seed: int, workers: WorkerWatch, original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(fetcher, index):
        if not isinstance(index, Indexed):
            return original(fetcher, index)
        watch = workers.of(*index.read, fetcher.dataset)
        stream = fetcher.__dict__.get(_STREAM)
        if stream is None:
            info = get_worker_info()
            stream = Stream(
                derive(seed, "iterable", index.read.epoch, 0 if info is None else info.id)
            )
            setattr(fetcher, _STREAM, stream)
        with _one_thread():
            return stream.run(lambda: watch(lambda: original(fetcher, index.index)))

    return wrapper


def _sample(
    dataset: Any,
    purpose: tuple[object, ...],
    index: Any,
    make: Callable[[Callable[[], Any]], Any],
) -> Any:
    seed_host(derive(*purpose, index))
    return make(lambda: dataset[index])


def _has_batches(dataset: Any) -> bool:
    """Whether the dataset makes batches in a way of its own. A Subset only passes the indices on."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


@contextmanager
def _one_thread():
    """Sums come out the same as in a worker, which has one thread."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
