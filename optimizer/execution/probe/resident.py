"""The same batch again and again, already on the device: how fast a step is when its data costs nothing."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .patches import Patches

_DEPTH = 8


class ResidentBatch:
    """Has every loader of known length give its first batch for all the others.

    A copy of one of its tensors to another device is made once. Loaders without a length are left alone: nobody could
    tell when their pass is over.
    """

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._first: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._passes: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        self._copies: dict[int, dict[Any, Tensor]] = {}

    def install(self) -> None:
        """Replace what loaders give and how their batches are copied."""
        wrap = self._patches.wrap
        wrap(DataLoader, "__iter__", self._iter)
        wrap(_BaseDataLoaderIter, "__next__", self._next)
        for name in ("to", "cuda"):
            wrap(Tensor, name, self._move)

    def _iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(loader):
            iterator = original(loader)
            with suppress(TypeError):
                self._passes[iterator] = [loader, len(loader)]
            return iterator

        return wrapper

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(iterator):
            known = self._passes.get(iterator)
            if known is None:
                return original(iterator)
            loader, left = known
            if left <= 0:
                raise StopIteration
            known[1] = left - 1
            if loader not in self._first:
                batch = original(iterator)
                self._first[loader] = batch
                for tensor in _tensors(batch):
                    self._copies.setdefault(id(tensor), {})
            return self._first[loader]

        return wrapper

    def _move(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(tensor, *args, **kwargs):
            copies = self._copies.get(id(tensor))
            if copies is None:
                return original(tensor, *args, **kwargs)
            key = (original, args, tuple(sorted(kwargs.items())))
            try:
                if key not in copies:
                    copies[key] = original(tensor, *args, **kwargs)
            except TypeError:  # an argument that cannot be a key
                return original(tensor, *args, **kwargs)
            return copies[key]

        return wrapper


def _tensors(batch: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    """The tensors in ``batch``, which is kept, so that their ids stay theirs."""
    if isinstance(batch, Tensor):
        yield batch
    elif depth and isinstance(batch, dict):
        for value in batch.values():
            yield from _tensors(value, depth - 1)
    elif depth and isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _tensors(value, depth - 1)
