"""Replacing functions of ``torch.nn.functional``, which ``torch.jit.script`` has to find as torch has them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from .patches import Patches


class Functions:
    """Functions replaced for the time of a run; ``torch.jit.script`` reads the source of torch's own."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._replaced: dict[str, tuple[Any, Any]] = {}
        patches.wrap(torch.jit, "script", self._with_own)

    def wrap(self, name: str, make: Callable[[Any], Any]) -> None:
        """Replace the function ``name``, where this torch has it, by ``make(original)``."""
        if hasattr(functional, name):
            own = getattr(functional, name)
            self._patches.wrap(functional, name, make)
            self._replaced[name] = (own, getattr(functional, name))

    def _with_own(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            for name, (own, _) in self._replaced.items():
                setattr(functional, name, own)
            try:
                return original(*args, **kwargs)
            finally:
                for name, (_, ours) in self._replaced.items():
                    setattr(functional, name, ours)

        return wrapper
