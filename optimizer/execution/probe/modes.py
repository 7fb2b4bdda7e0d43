"""Whether a module does in training mode what it does in eval mode."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import linecache
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import nn

_MODE = "training"
_ASKED = re.compile(rf"\.\s*{_MODE}\b|[\"']{_MODE}[\"']")
"""How source code asks for the mode."""


def heeds_mode(module: nn.Module) -> bool:
    """Whether any layer of ``module`` may do something else in eval mode; so it is where that is not known."""
    return any(_layer_heeds(layer) for layer in module.modules())


def told_mode(module: nn.Module) -> str | None:
    """The mode ``module`` is in, and is in again where it is loaded from a file as a whole; None where no layer heeds it."""
    heeding = [(name, layer) for name, layer in module.named_modules() if _layer_heeds(layer)]
    training = [name for name, layer in heeding if layer.training]
    if not heeding:
        return None
    if len(training) in (0, len(heeding)):
        return "in training mode" if training else "in eval mode"
    return f"in eval mode, but {', '.join(training)} in training mode"


def _layer_heeds(layer: Any) -> bool:
    hooks = (*layer._forward_pre_hooks.values(), *layer._forward_hooks.values())
    if any(not _of_torch(type(hook)) or _class_heeds(type(hook)) for hook in hooks):
        return True
    if "forward" in vars(layer) or isinstance(layer, torch.jit.ScriptModule):
        return True
    return _class_heeds(type(layer)) and not _asks_in_vain(layer)


def _asks_in_vain(layer: Any) -> bool:
    """Whether it is one of torch's layers that asks for the mode where nothing hangs on it.

    One that drops nothing is none: with another setting it would.
    """
    if not _of_torch(type(layer)):
        return False
    if isinstance(layer, nn.RNNBase):
        return layer.num_layers == 1  # it drops between layers
    return (
        isinstance(layer, nn.modules.instancenorm._InstanceNorm) and not layer.track_running_stats
    )


@functools.cache
def _class_heeds(kind: type) -> bool:
    """Whether its code, or for a class outside of torch any code in its files, asks for the mode."""
    codes = [
        code for base in kind.__mro__ if base not in (nn.Module, object) for code in _codes(base)
    ]
    if _of_torch(kind):
        return any(_names_mode(code) for code in codes)
    return any(_file_asks(name) for name in {code.co_filename for code in codes})


def _of_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def _codes(kind: type) -> Iterator[CodeType]:
    """The code of its methods."""
    for value in vars(kind).values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _names_mode(code: CodeType) -> bool:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return _MODE in code.co_names or _MODE in code.co_consts or any(map(_names_mode, inner))


@functools.cache
def _file_asks(name: str) -> bool:
    """Whether a file may ask for it: a helper that a method calls is most often there, too."""
    source = "".join(linecache.getlines(name))
    return not source or _ASKED.search(source) is not None
