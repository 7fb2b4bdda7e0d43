"""``model.forward(x)``: calls of a model that go around ``Module.__call__``."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from .functions import put_back_to_script
from .patches import Patches

Call = Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class DirectCalls:
    """Has ``call(module, forward, args, kwargs)`` make every call of a model's ``forward``."""

    def __init__(self, call: Call, patches: Patches) -> None:
        self._call = call
        self._patches = patches
        self._wrapped: dict[type, tuple[Any, Any]] = {}

    def install(self) -> None:
        """Let ``torch.jit.script``, which reads a forward's source and names, find the script's own."""
        put_back_to_script(
            self._patches,
            lambda: [(kind, "forward", *both) for kind, both in self._wrapped.items()],
        )

    def watch(self, models: Iterable[nn.Module]) -> None:
        """Replace the ``forward`` of these models' classes, but for torch's own."""
        for model in models:
            for kind in type(model).__mro__:
                if "forward" in vars(kind) and not kind.__module__.startswith("torch."):
                    self._watch_class(kind)

    def _watch_class(self, kind: type) -> None:
        forward = vars(kind)["forward"]
        if kind in self._wrapped or not inspect.isfunction(forward):
            return
        self._patches.wrap(kind, "forward", self._wrap)
        self._wrapped[kind] = (forward, vars(kind)["forward"])

    def _wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        call = self._call

        @functools.wraps(forward)
        def wrapper(module, /, *args, **kwargs):
            if torch.compiler.is_compiling():
                return forward(module, *args, **kwargs)
            return call(module, forward, args, kwargs)

        # For libraries that look at a forward's arguments without following __wrapped__.
        with suppress(ValueError, TypeError):
            vars(wrapper)["__signature__"] = inspect.signature(forward)
        return wrapper
