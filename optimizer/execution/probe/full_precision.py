"""Take away what only changes rounding, so that a rewrite's arithmetic can be compared with the original's."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .patches import Patches


def compute_in_full_precision(patches: Patches) -> None:
    """Autocast regions are entered disabled, and the script cannot lower the precision of float32 products.

    Compilation and TF32, whichever setting asks for it, are switched off by the environment (see the runner). A GradScaler is left as it is: it
    multiplies by a power of two, which is exact.
    """
    patches.wrap(torch.autocast, "__enter__", _disabled)
    patches.wrap(torch, "set_float32_matmul_precision", _ignored)


def _ignored(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(precision: str) -> None:
        """Leave the precision as it is."""

    return wrapper


def _disabled(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(region):
        region._enabled = False
        return original(region)

    return wrapper
