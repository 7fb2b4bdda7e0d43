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
from .session import Session
from .start import STEPPED


def leave_to_itself(calls: Session, folder: Path) -> None:
    """In a process forked from the observed one: have ``calls``, which are the hooks', tell nothing, since the run's files are not this
    process's, but in the run's ``folder`` that an optimizer has stepped.
    """
    for name in vars(calls):
        setattr(calls, name, _nothing)
    calls.step_ends = _telling(folder)


def tell_steps(patches: Patches, folder: Path) -> None:
    """Have steps told in ``folder`` of a process that the script has started anew."""
    handle = register_optimizer_step_post_hook(_telling(folder))
    patches.on_undo(handle.remove)


def after_fork(action: Callable[[], None]) -> None:
    """Have ``action``, a method of something that lives on, called in every process that this one forks."""
    method = WeakMethod(action)

    def forked() -> None:
        call = method()
        if call is not None:
            call()

    os.register_at_fork(after_in_child=forked)


def _telling(folder: Path) -> Callable[..., None]:
    def stepped(*_: Any, **__: Any) -> None:
        with suppress(OSError):  # of a run that is over
            (folder / STEPPED).touch()

    return stepped


def _nothing(*_: Any, **__: Any) -> None:
    return None
