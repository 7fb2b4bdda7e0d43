"""Which passes over DataLoaders belong together, whichever objects make them.

A script may keep one loader for all epochs, or build one anew in each; either way an epoch is the next pass over the
same data. Loaders that read alike data in the same way are therefore one here, and their passes are counted together.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import hashlib
import weakref
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, Subset

_DEPTH = 4
"""How far into what a data set holds is looked to tell it from others."""
_ELEMENTS = 64
"""How many elements of a tensor or an array are looked at, evenly spaced."""


class LoaderPass(NamedTuple):
    """A pass: ``loader`` is the order of first use of the loaders that read its data so, ``epoch`` the passes before it."""

    loader: int
    epoch: int


class LoaderPasses:
    """Counts passes by what is read and in which manner: the data set's kind, size and a look at it, and the sampler's."""

    def __init__(self) -> None:
        self._kinds: WeakKeyDictionary[Any, Hashable] = WeakKeyDictionary()
        self._datasets: dict[int, tuple[weakref.ref[Any], Hashable]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._begun: Counter[int] = Counter()

    def begin(self, loader: Any) -> LoaderPass:
        """The pass over ``loader`` that begins now."""
        if loader not in self._kinds:
            self._kinds[loader] = (self._dataset(loader.dataset), _sampling(loader))
        number = self._numbers.setdefault(self._kinds[loader], len(self._numbers))
        self._begun[number] += 1
        return LoaderPass(number, self._begun[number] - 1)

    def _dataset(self, dataset: Any) -> Hashable:
        """What ``dataset`` looks like, or did when it was first read: it may count or keep things since."""
        reference, looks = self._datasets.get(id(dataset), (None, None))
        if reference is not None and reference() is dataset:
            return looks
        length = None if isinstance(dataset, IterableDataset) else length_of(dataset)
        try:
            looks = length, _looks(dataset, 0)
        except Exception:  # whatever the script's own classes may do when looked at
            looks = length, type(dataset).__qualname__
        with suppress(TypeError):  # of a list, say
            self._datasets[id(dataset)] = weakref.ref(dataset), looks
        return looks


def own_part(dataset: Any) -> Sequence[Any] | None:
    """The indices of a ``Subset``, where there are several processes: it may be one's share of the set."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    return dataset.indices if several and type(dataset) is Subset else None


def _sampling(loader: Any) -> Hashable:
    """The manner in which ``loader`` picks samples, whatever gathers them into batches."""
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while isinstance(inner := getattr(sampler, "sampler", None), Sampler):
        sampler = inner
    return type(sampler).__qualname__, getattr(sampler, "shuffle", None), length_of(sampler)


def _looks(thing: Any, depth: int) -> Hashable:
    """Equal for things that look alike."""
    if thing is None or isinstance(thing, (str, bytes, int, float)):
        return thing
    name = f"{type(thing).__module__}.{type(thing).__qualname__}"
    if depth > _DEPTH:
        return name
    if isinstance(thing, torch.Tensor):
        return name, tuple(thing.shape), str(thing.dtype), _glance(thing.detach().flatten())
    if hasattr(thing, "__array__") and hasattr(thing, "reshape") and hasattr(thing, "dtype"):
        return name, tuple(thing.shape), str(thing.dtype), _glance(thing.reshape(-1))
    if type(thing) in (list, tuple):
        picked = thing[:: max(1, len(thing) // 4)]
        return name, len(thing), tuple(_looks(one, depth + 1) for one in picked)
    if isinstance(thing, Dataset):
        return name, tuple((key, _looks(value, depth + 1)) for key, value in vars(thing).items())
    return name


def _glance(flat: Any) -> str:
    """A digest of some elements of a tensor or array of one dimension."""
    picked = flat[:: max(1, len(flat) // _ELEMENTS)]
    values = picked.tolist() if hasattr(picked, "tolist") else list(picked)
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def length_of(thing: Any) -> int | None:
    """Its length, None where it has none."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None
