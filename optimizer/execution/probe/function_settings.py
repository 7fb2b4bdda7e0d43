"""With which settings the script calls the functions of ``torch.nn.functional``: the ``eps`` of a normalization, the index a loss ignores.

Torch's layers call them, too, so that a layer and its function tell the same.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from .functions import Functions
from .patches import Patches

SETTINGS = (
    "eps",
    *("alpha", "negative_slope", "lower", "upper", "min_val", "max_val", "threshold"),
    *("beta", "blank", "delta", "full", "ignore_index", "margin", "swap", "zero_infinity"),
)
"""Parameters that choose a function. Of those that say how sums are made (``reduction``), or what is dropped, the numbers tell more."""
_KEPT_CALLS = 1024
"""Of each function, before the first step."""


class FunctionSettings:
    """Notes the settings of each call until the first step, and all that there are of each function in the whole run.

    ``rounds`` is how many have begun. Of calls inside of compiled functions not all are seen.
    """

    def __init__(self, rounds: Callable[[], int]) -> None:
        self._rounds = rounds
        self._first: dict[str, list[str]] = {}
        self._all: dict[str, dict[str, None]] = {}

    def install(self, patches: Patches) -> None:
        """Hear of every function that has one of the :data:`SETTINGS`."""
        functions = Functions(patches)
        for name, function in list(vars(functional).items()):
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            try:
                parameters = inspect.signature(function).parameters
            except ValueError:  # another hook's, around a built-in function
                continue
            places = {
                one: (place, parameter.default)
                for place, (one, parameter) in enumerate(parameters.items())
                if one in SETTINGS
            }
            if places:
                functions.wrap(name, functools.partial(self._noting, name, places))

    def _noting(
        self, name: str, places: Mapping[str, tuple[int, Any]], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            if not torch.compiler.is_compiling():
                told = [
                    f"{one}={args[place] if place < len(args) else kwargs.get(one, default)!r}"
                    for one, (place, default) in places.items()
                ]
                self._note(name, ", ".join(told))
            return original(*args, **kwargs)

        return wrapper

    def _note(self, name: str, told: str) -> None:
        self._all.setdefault(name, {})[told] = None
        first = self._first.setdefault(name, [])
        if not self._rounds() and len(first) < _KEPT_CALLS:
            first.append(told)

    def finish(self) -> dict[str, Any]:
        """What the record says of them."""
        return {
            "function_settings": {
                name: [self._first[name], list(told)] for name, told in self._all.items()
            }
        }
