"""Replacing functions of torch, which ``torch.jit.script`` has to find as torch has them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import functional

from .patches import Patches

Replaced = tuple[Any, str, Any, Any]
"""An owner, the name of its attribute, what that was and what it is now."""


class Functions:
    """Functions replaced for the time of a run; ``torch.jit.script`` reads the source of torch's own, or knows them as built in."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._replaced: list[Replaced] = []
        put_back_to_script(patches, lambda: self._replaced)

    def wrap(self, name: str, make: Callable[[Any], Any], owner: Any = functional) -> None:
        """Replace the function ``name`` of ``owner``, where this torch has it, by ``make(original)``."""
        if hasattr(owner, name):
            own = getattr(owner, name)
            self._patches.wrap(owner, name, make)
            self._replaced.append((owner, name, own, getattr(owner, name)))


def put_back_to_script(patches: Patches, replaced: Callable[[], Iterable[Replaced]]) -> None:
    """Have ``torch.jit.script``, which reads sources and names, find things as they were before they were ``replaced``.

    It calls itself for all that a function calls: only the first of these calls takes the replacements up again.
    """
    inside = False

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            nonlocal inside
            if inside:
                return original(*args, **kwargs)
            things, inside = list(replaced()), True
            for owner, name, own, _ in things:
                setattr(owner, name, own)
            try:
                return original(*args, **kwargs)
            finally:
                inside = False
                for owner, name, _, ours in things:
                    setattr(owner, name, ours)

        return wrapper

    patches.wrap(torch.jit, "script", make)
