"""Processes that the script starts and that become no rank: they are left to themselves, and that they train is told."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakMethod

from torch.optim.optimizer import register_optimizer_step_post_hook

from .patches import Patches
from .start import STEPPED


class Elsewhere:
    """Takes the place of the session in a process forked from the observed one, whose files are not its own.

    It hears of everything and tells nothing but that an optimizer has stepped, in the run's ``folder``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def step_ends(self, *_: Any, **__: Any) -> None:
        """An optimizer has stepped."""
        _tell(self._folder)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def tell_steps(patches: Patches, folder: Path) -> None:
    """Have steps told in ``folder`` of a process that the script has started anew."""

    def stepped(*_: Any) -> None:
        _tell(folder)

    handle = register_optimizer_step_post_hook(stepped)
    patches.on_undo(handle.remove)


def after_fork(action: Callable[[], None]) -> None:
    """Have ``action``, a method of something that lives on, called in every process that this one forks."""
    method = WeakMethod(action)

    def forked() -> None:
        call = method()
        if call is not None:
            call()

    os.register_at_fork(after_in_child=forked)


def _tell(folder: Path) -> None:
    with suppress(OSError):  # of a run that is over
        (folder / STEPPED).touch()


def _nothing(*_: Any, **__: Any) -> None:
    return None
