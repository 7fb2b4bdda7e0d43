"""The permutations that a script draws for itself: those of its epochs, where it cuts batches without a loader.

A loader's pass has a permutation of its own under aligned randomness. A script that has its data on the device, and goes
through it by ``torch.randperm``, is given the same ones in the same order.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .patches import Patches
from .randomness import is_isolated, permutation_seed
from .symbolic import is_traced
from .transformations import transforming
from .worker_generators import digest_of


class Permutations:
    """Aligns ``torch.randperm`` in the main thread, but where a generator is given, or a sample is made.

    ``shuffled`` are the passes whose shuffles are drawn one after the other: of how many samples, and the shuffle's number. Without
    any they are numbered from 0.
    """

    def __init__(self, seed: int, shuffled: Sequence[tuple[int, int]] = ()) -> None:
        self._seed = seed
        self._shuffled = shuffled
        self._drawn: Counter[int] = Counter()
        self._since_seeding = 0
        self._numbers: dict[tuple[str, int, int], int] = {}

    def install(self, patches: Patches) -> None:
        """Patch what draws them, and what seeds the generator they would be drawn from."""
        patches.wrap(torch, "randperm", self._randperm)
        for module in (torch, torch.random):
            patches.wrap(module, "manual_seed", self._seeding)

    def _seeding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(seed):
            self._since_seeding = 0
            return original(seed)

        return wrapper

    def _randperm(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            if is_traced() or not self._for_an_epoch(args, kwargs):
                return original(*args, **kwargs)
            count = args[0]
            generator = torch.Generator()
            generator.manual_seed(permutation_seed(self._seed, self._number(count)))
            self._drawn[count] += 1
            device = kwargs.pop("device", None) or torch.empty(0).device
            drawn = original(count, **{**kwargs, "generator": generator, "device": "cpu"})
            return drawn.to(device, non_blocking=True)

        return wrapper

    def finish(self) -> dict[str, Any]:
        """What the record says of them."""
        return {"own_shuffles": dict(self._drawn)}

    def _number(self, count: int) -> int:
        """Which shuffle of ``count`` is drawn now."""
        drawn = self._drawn[count]
        of_passes = [number for length, number in self._shuffled if length == count]
        number = of_passes[drawn] if drawn < len(of_passes) else drawn
        # Drawn here, it leaves the generator as it is. Seeded alike in every epoch, the order would repeat itself, and does.
        state = digest_of(torch.default_generator), self._since_seeding, count
        self._since_seeding += 1
        return self._numbers.setdefault(state, number)

    def _for_an_epoch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call may be a pass's order."""
        if len(args) != 1 or not isinstance(args[0], int) or kwargs.keys() & {"generator", "out"}:
            return False
        elsewhere = is_isolated() or transforming()
        return not elsewhere and threading.current_thread() is threading.main_thread()
