"""What a module draws while it is evaluated, from a stream of its own: training behind it draws what it would draw anyway.

Else an evaluation in other batches, of a network that draws in eval mode too, would look like a change of training.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .patches import Patches
from .protection import Protection
from .randomness import States, derive, is_isolated, seed_host


class EvaluationDraws:
    """Sets the host's generators aside while a module is evaluated, unless the script has seeded one since the last step.

    Where it has, it may want the same draws in every evaluation. The stream is another one after every step.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._after: tuple[int, ...] = ()
        self._seeded = False
        self._outside: States | None = None
        self._inside: States | None = None
        self._fresh: States | None = None

    def install(self, patches: Patches, protection: Protection) -> None:
        """Hear of what seeds the generators; before others patch that."""
        for module in (torch, torch.random):
            patches.wrap(module, "manual_seed", self._seeding)
        patches.wrap(random.Random, "seed", self._python_seeding)

        def numpy(module: ModuleType) -> None:
            patches.wrap(module, "seed", self._seeding)

        protection.importer.after_import("numpy.random", numpy)

    @property
    def drew(self) -> bool:
        """Whether anything was drawn in evaluations since the last step."""
        return self._inside != self._fresh

    def stepped(self, *after: int) -> None:
        """The run has seeded the generators itself, by these numbers."""
        self._after, self._seeded = after, False
        self._outside = self._inside = self._fresh = None

    def begin(self) -> None:
        """A module is about to be evaluated; where a sample is made, it draws what that one does."""
        self.end()  # a call that failed
        if self._seeded or is_isolated() or not _in_main_thread():
            return
        self._outside = States()
        if self._inside is None:
            seed_host(derive(self._seed, "evaluation", *self._after))
            self._fresh = States()
        else:
            self._inside.restore()

    def end(self) -> None:
        """It was."""
        if self._outside is not None and _in_main_thread():
            self._inside = States()
            self._outside.restore()
            self._outside = None

    def _seeding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            self._heard()
            return original(*args, **kwargs)

        return wrapper

    def _python_seeding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(generator, *args, **kwargs):
            if generator is random._inst:  # type: ignore[attr-defined]
                self._heard()
            return original(generator, *args, **kwargs)

        return wrapper

    def _heard(self) -> None:
        # What is seeded while a module is evaluated is that stream's own.
        if self._outside is None and not is_isolated():
            self._seeded = True


def _in_main_thread() -> bool:
    """Others draw from generators of their own."""
    return threading.current_thread() is threading.main_thread()
