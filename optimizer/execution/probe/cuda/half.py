"""Operations on reduced types that the CPU has no kernel for, or a slow one, computed in float32 and rounded."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_to: Any = torch._C.TensorBase.to
"""What is replaced for the script's sake is not for this."""

_REDUCED = (torch.float16, torch.bfloat16)
_MISSING = ("not implemented for 'Half'", "not implemented for 'BFloat16'")

_PRODUCTS = frozenset("convolution convolution_backward mm addmm bmm baddbmm".split())
"""Computed in float32 and rounded, as tensor cores do. Many CPUs take minutes for a convolution in float16."""
_COARSE = frozenset({"_log_softmax"})
"""Computed in float32 and rounded on a GPU. The CPU's logarithm of a probability of 0.9995 is zero in bfloat16."""


def call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """``func(*args, **kwargs)``, by way of float32 as a GPU does, and where there is no kernel for the operands' type."""
    if func.overloadpacket.__name__ in _PRODUCTS | _COARSE and func._overloadname in (
        "default",
        "",
    ):
        reduced = any(isinstance(a, Tensor) and a.dtype in _REDUCED for a in args)
        return _through_float32(func, args, kwargs) if reduced else func(*args, **kwargs)
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if not any(words in str(error) for words in _MISSING):
            raise
    return _through_float32(func, args, kwargs)


def _through_float32(func, args, kwargs):
    reduced: list[torch.dtype] = []
    written: list[tuple[Tensor, Tensor]] = []
    mutates = func._schema.is_mutable

    def widen(thing: Any) -> Any:
        if not isinstance(thing, Tensor) or thing.dtype not in _REDUCED:
            return thing
        reduced.append(thing.dtype)
        wide = thing.float()
        if mutates:
            written.append((thing, wide))
        return wide

    wide_args, wide_kwargs = _mapped(widen, args), _mapped(widen, kwargs)
    if wide_kwargs.get("dtype") in _REDUCED:
        wide_kwargs["dtype"] = torch.float32
    results = func(*wide_args, **wide_kwargs)
    for given, wide in written:
        given.copy_(wide)

    def narrow(thing: Any) -> Any:
        if not isinstance(thing, Tensor) or thing.dtype is not torch.float32:
            return thing
        own = next((n for n, w in written if w is thing), None)
        return _to(thing, reduced[0]) if own is None else own

    return _mapped(narrow, results)


def _mapped(change: Callable[[Any], Any], thing: Any) -> Any:
    if isinstance(thing, (list, tuple)):
        return type(thing)(_mapped(change, item) for item in thing)
    if isinstance(thing, dict):
        return {key: _mapped(change, value) for key, value in thing.items()}
    return change(thing)
