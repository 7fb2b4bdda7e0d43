"""Seeds that the script leaves to the operating system or takes from the clock: in observed runs they come from the run's.

``np.random.default_rng()``, ``random.Random()`` and their like start from fresh entropy, ``torch.manual_seed(time.time())``
from the time of day. Two runs then share no draw, so that nothing could be told about them but how far such a script
is from itself.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import itertools
import os
import random
import sys
import sysconfig
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import get_worker_info

from .patches import Patches
from .protection import Protection
from .randomness import derive
from .variables import is_library

_STANDARD = sysconfig.get_path("stdlib")
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_UNITS = (1, 10**3, 10**6, 10**9)
"""What the time is counted in: seconds, milliseconds, and so on, per second."""
_LATELY = 3600
"""Seconds from now that a seed may be and still be the time of the run."""
_WORD = 2**32
"""Seeds that numpy takes are below it, so that milliseconds are given modulo that."""


class Entropy:
    """Gives what asks for fresh entropy the same numbers in every run of a ``seed``, others each time."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._counts: dict[str, itertools.count[int]] = {}

    def install(self, patches: Patches, protection: Protection) -> None:
        """Patch the generators of Python and torch, and numpy's once it is imported."""
        patches.wrap(random.Random, "seed", self._python_seed)
        patches.put(random, "seed", functools.partial(random.Random.seed, random._inst))  # type: ignore[attr-defined]
        patches.wrap(torch, "manual_seed", self._seeding)
        patches.wrap(torch, "seed", self._torch_seed)
        protection.importer.after_import(
            "numpy.random.bit_generator", functools.partial(self._numpy, patches)
        )
        protection.importer.after_import(
            "numpy.random", lambda numpy: patches.wrap(numpy, "seed", self._seeding)
        )

    def fresh(self, purpose: str) -> int:
        """A number of 62 bits, another one each time, in every process and in every worker."""
        worker = get_worker_info()
        place = os.environ.get("RANK", "0"), -1 if worker is None else worker.id
        count = next(self._counts.setdefault(purpose, itertools.count()))
        return derive(self._seed, "entropy", purpose, *place, count)

    def _numpy(self, patches: Patches, module: ModuleType) -> None:
        # What SeedSequence, and so every bit generator, asks for 128 bits.
        if hasattr(module, "randbits"):
            patches.put(module, "randbits", functools.partial(self._bits, "numpy"))

    def _bits(self, purpose: str, bits: int) -> int:
        number = 0
        for _ in range(-(-bits // 62)):
            number = number << 62 | self.fresh(purpose)
        return number & ((1 << bits) - 1)

    def _python_seed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(generator, a=None, *args, **kwargs):
            caller = _caller()
            if (a is None and not _of_standard_library(caller)) or _is_time(a, caller):
                a = self.fresh("python")
            return original(generator, a, *args, **kwargs)

        return wrapper

    def _torch_seed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper():
            number = self.fresh("torch")
            torch.manual_seed(number)
            return number

        return wrapper

    def _seeding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(seed=None, *args, **kwargs):
            if seed is None or _is_time(seed, _caller()):
                seed = self.fresh("seed") % _WORD
            return original(seed, *args, **kwargs)

        return wrapper


def _is_time(seed: Any, caller: str) -> bool:
    """Whether ``seed`` is the time of day, in whatever unit, perhaps modulo what numpy takes.

    Only the user's own code in the file ``caller`` is asked: of the many seeds that libraries draw, one could be it by chance.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, float)) or is_library(caller):
        return False
    now = time.time()
    if any(abs(seed - now * unit) < _LATELY * unit for unit in _UNITS):
        return True
    # Of the last second: of a longer time, or of a finer unit, a seed chosen by hand could be one by chance.
    return 0 <= seed < _WORD and (int(now * 1000) - seed) % _WORD < 1000


def _caller() -> str:
    """The file of the code that asks the function that calls this, past Python's own ``random``."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == random.__file__:
        frame = frame.f_back
    return frame.f_code.co_filename


def _of_standard_library(file: str) -> bool:
    """Whether this is Python's own code: names of temporary files should stay apart from other processes'."""
    return file.startswith(_STANDARD) and not file.startswith(_LIBRARIES)
