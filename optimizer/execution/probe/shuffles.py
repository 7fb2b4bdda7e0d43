"""Which passes over loaders would be shuffled alike, if randomness were not aligned.

Aligned randomness gives each pass a permutation of its own. A script that seeds its generator anew in every epoch reads
the samples in the same order again and again, and an aligned run does not show it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from .loader_passes import length_of
from .patches import Patches
from .worker_generators import digest_of

_SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class Shuffles:
    """Says of each pass what its order would be drawn from."""

    def __init__(self) -> None:
        self._since_seeding = 0

    def install(self, patches: Patches) -> None:
        """Hear of torch's default generator being seeded."""
        for module in (torch, torch.random):
            patches.wrap(module, "manual_seed", self._seeding)

    def _seeding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(seed):
            self._since_seeding = 0
            return original(seed)

        return wrapper

    def drawn_from(self, loader: Any) -> str | None:
        """What a pass over ``loader`` that begins now takes its order from: equal for equal orders. None without a shuffle.

        It is the state of the generator. Aligned, a pass leaves that as it is: of the default one, which every step seeds
        anew, the passes since then are counted; one of the script's own goes on by a draw here.
        """
        before, self._since_seeding = self._since_seeding, self._since_seeding + 1
        sampler = _shuffling_sampler(loader)
        if sampler is None:
            return None
        own = getattr(sampler, "generator", None)
        if own is None:
            return f"{digest_of(torch.default_generator)}, {before} passes"
        state = digest_of(own)
        torch.empty((), dtype=torch.int64).random_(generator=own)
        return f"own {state}"


def shuffled_length(loader: Any) -> int | None:
    """How many samples a pass over ``loader`` shuffles; None without a shuffle."""
    sampler = _shuffling_sampler(loader)
    return None if sampler is None else length_of(sampler)


def _shuffling_sampler(loader: Any) -> Any:
    for outer in (loader.sampler, getattr(loader, "batch_sampler", None)):
        for sampler in (outer, getattr(outer, "sampler", None)):
            if isinstance(sampler, _SHUFFLING):
                return sampler
    return None
