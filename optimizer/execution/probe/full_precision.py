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
_METHODS = "to type new_empty new_full new_ones new_tensor new_zeros".split()


def compute_in_full_precision(patches: Patches) -> None:
    """Autocast regions are entered disabled, and the script cannot lower the precision of float32 products.

    Compilation and TF32, whichever setting asks for it, are switched off by the environment (see the runner). A GradScaler is left as it is: it
    multiplies by a power of two, which is exact.
    """
    patches.wrap(torch.autocast, "__enter__", _disabled)
    patches.wrap(torch, "set_float32_matmul_precision", _ignored)


def keep_in_float32(patches: Patches, asked: Callable[[], object], *, rounded: bool) -> None:
    """Where the script asks for a tensor in bfloat16 or float16 (``asked`` is called then), it gets one in float32.

    So it goes together with others in float32, as it does under autocast. ``rounded`` says whether it holds no more than it otherwise would.
    """
    made = functools.partial(_widened, asked, rounded)
    patches.wrap(torch, "set_default_dtype", functools.partial(_widened, asked, False))
    for name in ("bfloat16", "half"):  # those of modules call these
        patches.wrap(Tensor, name, functools.partial(_copied, asked, rounded))
    for name in _METHODS:
        patches.wrap(Tensor, name, made)
    functions = Functions(patches)
    for name in _FACTORIES:
        functions.wrap(name, made, owner=torch)


def _widened(
    asked: Callable[[], object], rounded: bool, original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        wide = [*map(_wide, args)], {name: _wide(one) for name, one in kwargs.items()}
        given, instead = (*args, *kwargs.values()), (*wide[0], *wide[1].values())
        if all(before is after for before, after in zip(given, instead, strict=True)):
            return original(*args, **kwargs)
        asked()
        if rounded:
            return _in_float32(original(*args, **kwargs))
        result = original(*wide[0], **wide[1])
        return result.clone() if any(result is one for one in given) else result

    return wrapper


def _copied(
    asked: Callable[[], object], rounded: bool, original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(tensor, **kwargs):
        asked()
        if rounded:
            return _in_float32(original(tensor, **kwargs))
        return tensor.float().clone(**kwargs)

    return wrapper


def _wide(argument: Any) -> Any:
    """float32 in the place of a reduced type, or of the name of one; anything else as it is."""
    if isinstance(argument, torch.dtype) and argument in _REDUCED:
        return torch.float32
    return torch.float32 if isinstance(argument, str) and argument in _NAMES else argument


def _in_float32(tensor: Tensor) -> Tensor:
    """A leaf where ``tensor`` is one."""
    leaf = tensor.is_leaf and tensor.requires_grad
    return tensor.detach().float().requires_grad_() if leaf else tensor.float()


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
