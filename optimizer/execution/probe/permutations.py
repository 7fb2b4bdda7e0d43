"""The permutations that a script draws for itself: those of its epochs, where it cuts batches without a loader.

A loader's pass has a permutation of its own under aligned randomness. A script that goes through its data by ``torch.randperm``,
``np.random.permutation``, or indices that ``np.random.shuffle`` or ``random.shuffle`` has mixed, is given the same ones in the same order.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch

from .patches import Patches
from .randomness import is_isolated, permutation_seed
from .symbolic import is_traced
from .transformations import transforming
from .worker_generators import digest_of, digest_of_state

_KEPT = 16
"""So many lists that are shuffled in place are remembered: those of a script that makes a new one for each epoch are let go."""
_randperm = torch.randperm  # as it is before anything is patched


class Permutations:
    """Aligns shuffles by global generators in the main thread, but where a generator is given, or a sample is made.

    ``shuffled`` are the passes whose shuffles are drawn one after the other: of how many samples, and the shuffle's number. Without
    any they are numbered from 0, of each library's by themselves: what numpy splits the data by is no epoch of torch's.
    """

    def __init__(self, seed: int, shuffled: Sequence[tuple[int, int]] = ()) -> None:
        self._seed = seed
        self._shuffled = shuffled
        self._sources: list[_Source] = []
        self._lists: dict[int, _InPlace] = {}

    def install(self, patches: Patches) -> None:
        """Patch what draws them, and what seeds the generators they would be drawn from."""
        source = self._source(lambda: digest_of(torch.default_generator))
        patches.wrap(torch, "randperm", functools.partial(self._randperm, source))
        for module in (torch, torch.random):
            patches.wrap(module, "manual_seed", source.seeding)
        source = self._source(lambda: digest_of_state(random.getstate()))
        patches.wrap(random, "shuffle", functools.partial(self._shuffle, source))
        patches.wrap(random, "seed", source.seeding)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and hasattr(numpy, "random"):
            source = self._source(lambda: digest_of_state(numpy.random.get_state()))
            patches.wrap(numpy.random, "permutation", functools.partial(self._permutation, source))
            patches.wrap(numpy.random, "shuffle", functools.partial(self._shuffle, source))
            patches.wrap(numpy.random, "seed", source.seeding)

    def finish(self) -> dict[str, Any]:
        """What the record says of them."""
        drawn: Counter[int] = Counter()
        for source in self._sources:
            drawn |= source.drawn
        return {"own_shuffles": dict(drawn)}

    def _source(self, state: Callable[[], str]) -> _Source:
        self._sources.append(_Source(state))
        return self._sources[-1]

    def _generator(self, source: _Source, count: int) -> torch.Generator:
        """What the permutation of ``count`` is drawn from that ``source`` would draw now."""
        of_passes = [number for length, number in self._shuffled if length == count]
        generator = torch.Generator()
        return generator.manual_seed(permutation_seed(self._seed, source.number(count, of_passes)))

    def _drawn(self, source: _Source, count: int) -> torch.Tensor:
        """That permutation, as a tensor."""
        return _randperm(count, generator=self._generator(source, count), device="cpu")

    def _randperm(self, source: _Source, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            chosen = kwargs.keys() & {"generator", "out"}
            if is_traced() or chosen or len(args) != 1 or not _of_an_epoch(args[0]):
                return original(*args, **kwargs)
            device = kwargs.pop("device", None) or torch.empty(0).device
            generator = self._generator(source, args[0])
            drawn = original(args[0], **{**kwargs, "generator": generator, "device": "cpu"})
            return drawn.to(device, non_blocking=True)

        return wrapper

    def _permutation(self, source: _Source, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(x: Any) -> Any:
            count = _rows(x)
            if not _of_an_epoch(count):
                return original(x)
            drawn = self._drawn(source, count).numpy()
            return drawn if isinstance(x, Integral) else sys.modules["numpy"].asarray(x)[drawn]

        return wrapper

    def _shuffle(self, source: _Source, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(x, *args, **kwargs):
            row = type(x) is list or (type(x).__name__ == "ndarray" and x.ndim == 1)
            if args or kwargs or not row or not _of_an_epoch(len(x)):
                original(x, *args, **kwargs)
                return
            known = self._lists.get(id(x))
            if known is None or not known.is_still():
                known = self._lists[id(x)] = _InPlace(x)
            known.put(self._drawn(source, len(x)).tolist())
            while len(self._lists) > _KEPT:
                self._lists.pop(next(iter(self._lists)))

        return wrapper


def _rows(x: Any) -> int:
    """How many ``np.random.permutation(x)`` has to permute, 0 where that is something unusual."""
    if isinstance(x, Integral):
        return int(x)
    return len(x) if type(x) is list or getattr(x, "ndim", 0) else 0


def _of_an_epoch(count: Any) -> bool:
    """Whether a permutation of ``count`` that is drawn now may be a pass's order."""
    if not isinstance(count, int) or count <= 0:
        return False
    elsewhere = is_isolated() or transforming()
    return not elsewhere and threading.current_thread() is threading.main_thread()


class _Source:
    """A global generator that shuffles are drawn from; ``state`` tells its state."""

    def __init__(self, state: Callable[[], str]) -> None:
        self.drawn: Counter[int] = Counter()
        self._state = state
        self._since_seeding = 0
        self._numbers: dict[tuple[str, int, int], int] = {}

    def seeding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The function ``original``, which seeds the generator."""

        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            self._since_seeding = 0
            return original(*args, **kwargs)

        return wrapper

    def number(self, count: int, of_passes: Sequence[int]) -> int:
        """Which shuffle of ``count`` is drawn now; ``of_passes`` are the numbers of the first ones."""
        drawn = self.drawn[count]
        self.drawn[count] += 1
        number = of_passes[drawn] if drawn < len(of_passes) else drawn
        # Drawn here, it leaves the generator as it is. Seeded alike in every epoch, the order would repeat itself, and does.
        state = self._state(), self._since_seeding, count
        self._since_seeding += 1
        return self._numbers.setdefault(state, number)


class _InPlace:
    """A list, or an array, that is shuffled again and again: each time as from the order it had first, like a pass over it."""

    def __init__(self, values: Any) -> None:
        self._values: Any = values
        self._first: Any = values.copy()
        self._left: Any = self._first

    def is_still(self) -> bool:
        """Whether it is as the last shuffle has left it."""
        if not isinstance(self._values, list):
            return self._values.tobytes() == self._left.tobytes()
        same = len(self._values) == len(self._left)
        return same and all(a is b for a, b in zip(self._values, self._left, strict=True))

    def put(self, order: Sequence[int]) -> None:
        """Put the elements it had first in this ``order``."""
        if isinstance(self._values, list):
            self._left = [self._first[place] for place in order]
        else:
            self._left = self._first[list(order)]
        self._values[:] = self._left
