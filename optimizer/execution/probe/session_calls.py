"""What hooks call to tell a :class:`Session` what happens: one object for all hooks, so that the calls can lead elsewhere."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch

from .session import Session


def calls_of(session: Session) -> Session:
    """The public methods of ``session``, in an object that lets others take their places."""
    names = [name for name in vars(Session) if not name.startswith("_")]
    return cast("Session", SimpleNamespace(**{name: getattr(session, name) for name in names}))


def leave_to_python(calls: Session) -> None:
    """Have Dynamo, which this imports, not trace ``calls`` where it compiles a whole training step."""
    for name, call in vars(calls).items():
        setattr(calls, name, untraced(call))


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, left to Python by Dynamo."""
    return cast("Callable[..., Any]", torch.compiler.disable(function))
