"""Noise that is drawn for each sample of a batch: by several ranks for their shares, by one process for the whole batch.

A generator's input, or what a variational autoencoder adds to its codes. Ranks would draw other numbers than one process does; with
``align`` each draws those of the whole batch and takes its share: every so many-th row, as a ``DistributedSampler`` deals samples.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .functions import Functions
from .patches import Patches
from .randomness import derive, is_isolated, seed_everything
from .reading import Reading
from .symbolic import is_traced
from .thread_draws import FACTORIES, FILLS, SAMPLERS

_MIXES = frozenset({"randperm"})
_OF_NUMPY = {
    "beta": 2,
    "binomial": 2,
    "exponential": 1,
    "normal": 2,
    "rand": 0,
    "randint": 2,
    "randn": 0,
    "random": 0,
    "random_sample": 0,
    "standard_normal": 0,
    "uniform": 2,
}
"""Which argument of a function is the size of what it draws, or the first of its sizes."""
_OF_TORCH = {"rand": 0, "randn": 0}


class SharedDraws:
    """Counts draws for each sample of the batch that was read last; with ``align`` ranks draw the whole batch's."""

    def __init__(self, reading: Reading, seed: int, *, align: bool) -> None:
        self._reading, self._align, self._seed = reading, align, seed
        self._count = 0
        self._inside = False

    def install(self, patches: Patches, functions: Functions) -> None:
        """Replace what draws, of torch and of numpy."""
        for name in (*FACTORIES, *SAMPLERS):
            if name not in _MIXES:
                drawing = functools.partial(self._drawing, size=_OF_TORCH.get(name))
                functions.wrap(name, drawing, torch)
        for name in ("bernoulli", "multinomial"):
            patches.wrap(Tensor, name, self._drawing)
        for name in FILLS:
            patches.wrap(Tensor, name, self._filling)
        if (numpy := sys.modules.get("numpy")) is not None:
            for name, size in _OF_NUMPY.items():
                patches.wrap(numpy.random, name, functools.partial(self._drawing, size=size))
        if self._align:
            patches.wrap(self._reading, "got_batch", self._begun)

    def _begun(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def got_batch(*args, **kwargs):
            original(*args, **kwargs)
            if not self._reading.has_stepped and not is_isolated():
                # The ranks have parted their generators; behind a step they are seeded anew.
                seed_everything(derive(self._seed, "first batch"))

        return got_batch

    def _share(self, *sizes: int) -> tuple[int, int] | None:
        """The rank and how many there are, where a draw of these first ``sizes`` is one for each sample; one process is rank 0 of 1."""
        samples = self._reading.batch
        outside = threading.current_thread() is not threading.main_thread() or is_isolated()
        if samples < 2 or samples not in sizes or self._inside or outside:
            return None
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return 0, 1
        ranks = distributed.get_world_size()
        return (distributed.get_rank(), ranks) if ranks == 1 or self._reading.is_share else None

    def _drawing(self, original: Callable[..., Any], size: int | None = None) -> Any:
        """``size`` is which argument of ``original`` may be a whole number that is the size, or the first of the sizes."""

        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            if is_traced():
                return original(*args, **kwargs)
            given = {**dict(enumerate(args)), **kwargs}
            firsts = {key: _first(one, key in (size, "size")) for key, one in given.items()}
            share = self._share(*firsts.values()) if kwargs.get("generator") is None else None
            if share is None or kwargs.get("out") is not None:
                return original(*args, **kwargs)
            self._count += 1
            rank, ranks = share
            if ranks == 1 or not self._align:
                return original(*args, **kwargs)
            for key, first in firsts.items():
                if first == self._reading.batch:
                    given[key] = _of_all(given[key], ranks)
            named = {key: given[key] for key in kwargs}
            drawn = self._drawn(original, [given[n] for n in range(len(args))], named)
            mine = drawn[rank::ranks]
            return mine.contiguous() if isinstance(mine, Tensor) else mine.copy()

        return wrapper

    def _filling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(tensor, *args, **kwargs):
            if is_traced():
                return original(tensor, *args, **kwargs)
            share = self._share(_first(tensor)) if kwargs.get("generator") is None else None
            if share is None:
                return original(tensor, *args, **kwargs)
            self._count += 1
            rank, ranks = share
            if ranks == 1 or not self._align:
                return original(tensor, *args, **kwargs)
            with torch.no_grad():
                whole = tensor.detach().repeat_interleave(ranks, 0)
                drawn = self._drawn(original, (whole, *args), kwargs)
                return tensor.copy_(drawn[rank::ranks])

        return wrapper

    def _drawn(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._inside = True
        try:
            return original(*args, **kwargs)
        finally:
            self._inside = False

    def finish(self) -> dict[str, Any]:
        """What the record says of them."""
        return {"noises": self._count}


def _first(given: Any, is_size: bool = False) -> int:
    """The first size that an argument of a draw tells, 0 where it tells none."""
    if isinstance(given, Tensor):
        return int(given.shape[0]) if given.dim() else 0
    if isinstance(given, (tuple, list)):
        return given[0] if given and isinstance(given[0], int) else 0
    return given if is_size and isinstance(given, int) else 0


def _of_all(given: Any, ranks: int) -> Any:
    """The argument ``given`` of a draw for a share, of that for the shares of all ``ranks``."""
    if isinstance(given, Tensor):
        return given.repeat_interleave(ranks, 0)
    if isinstance(given, int):
        return given * ranks
    return (given[0] * ranks, *given[1:])
