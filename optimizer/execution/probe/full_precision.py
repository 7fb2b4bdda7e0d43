"""Take away what only changes rounding, so that a rewrite's arithmetic can be compared with the original's."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .functions import Functions
from .patches import Patches

_REDUCED = frozenset({torch.bfloat16, torch.float16})
_NAMES = {
    f"torch.{place}{name}" for name in ("BFloat16Tensor", "HalfTensor") for place in ("", "cuda.")
}
_FACTORIES = (
    "arange as_tensor asarray empty empty_like eye full full_like linspace ones ones_like rand rand_like randn randn_like tensor"
    " zeros zeros_like"
).split()
_METHODS = "new_empty new_full new_ones new_tensor new_zeros".split()


def compute_in_full_precision(patches: Patches) -> None:
    """Autocast regions are entered disabled, and the script cannot lower the precision of float32 products.

    Where it asks for a tensor in bfloat16 or float16, it gets one in float32. Compilation and TF32, whichever setting asks for it, are switched off by
    the environment (see the runner). A GradScaler is left as it is: it multiplies by a power of two, which is exact.
    """
    patches.wrap(torch.autocast, "__enter__", _disabled)
    patches.wrap(torch, "set_float32_matmul_precision", _ignored)
    patches.wrap(torch, "set_default_dtype", _widened)
    for name in ("bfloat16", "half"):  # those of modules call these
        patches.wrap(Tensor, name, _copied)
    for name in ("to", "type"):
        patches.wrap(Tensor, name, _converted)
    for name in _METHODS:
        patches.wrap(Tensor, name, _widened)
    functions = Functions(patches)
    for name in _FACTORIES:
        functions.wrap(name, _widened, owner=torch)


def _wide(argument: Any) -> Any:
    """float32 in the place of a reduced type, or of the name of one; anything else as it is."""
    if isinstance(argument, torch.dtype) and argument in _REDUCED:
        return torch.float32
    return torch.float32 if isinstance(argument, str) and argument in _NAMES else argument


def _widened(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        return original(*map(_wide, args), **{name: _wide(one) for name, one in kwargs.items()})

    return wrapper


def _converted(original: Callable[..., Any]) -> Callable[..., Any]:
    """A conversion; that to a reduced type gives a tensor of its own, as ever."""

    @functools.wraps(original)
    def wrapper(tensor, *args, **kwargs):
        wide = [_wide(one) for one in args], {name: _wide(one) for name, one in kwargs.items()}
        given, named = (*args, *kwargs.values()), (*wide[0], *wide[1].values())
        converted = original(tensor, *wide[0], **wide[1])
        lowered = any(before is not after for before, after in zip(given, named, strict=True))
        return converted.clone() if lowered and converted is tensor else converted

    return wrapper


def _copied(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(tensor, **kwargs):
        return tensor.to(torch.float32, copy=True, **kwargs)

    return wrapper


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
