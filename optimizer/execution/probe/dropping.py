"""Dropout: how often it was applied, and with which probability; switched off where runs that draw otherwise are compared."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .functions import Functions
from .patches import Patches

_FUNCTIONS = (
    "alpha_dropout",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "feature_alpha_dropout",
)
_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
_ATTENTION = "scaled_dot_product_attention"


class Dropouts:
    """Counts what is dropped out in training; ``off`` has nothing dropped."""

    def __init__(self, *, off: bool) -> None:
        self._off = off
        self._counts: Counter[tuple[str, float]] = Counter()

    def install(self, patches: Patches, functions: Functions) -> None:
        """Replace torch's functions and layers that drop elements."""
        for name in _FUNCTIONS:
            functions.wrap(name, functools.partial(self._function, name))
        functions.wrap(_ATTENTION, self._attention)
        for layer in _RECURRENT:
            patches.wrap(layer, "forward", self._recurrent)

    def _probability(self, name: str, p: float) -> float:
        """What to drop with, instead of ``p``."""
        if p and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._counts[name, float(p)] += 1
        return 0.0 if self._off else p

    def _function(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        by_default = "alpha" not in name

        @functools.wraps(original)
        def wrapper(input, p=0.5, training=by_default, inplace=False):
            if training:
                p = self._probability(name, p)
            return original(input, p, training, inplace)

        return wrapper

    def _attention(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs):
            dropout_p = self._probability(_ATTENTION, dropout_p)
            return original(query, key, value, attn_mask, dropout_p, *args, **kwargs)

        return wrapper

    def _recurrent(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(layer, *args, **kwargs):
            own = layer.dropout
            if layer.training and layer.num_layers > 1:
                layer.dropout = self._probability(type(layer).__name__, own)
            try:
                return original(layer, *args, **kwargs)
            finally:
                layer.dropout = own

        return wrapper

    def finish(self) -> dict[str, Any]:
        """What the record says of it."""
        return {"dropouts": [[name, p, n] for (name, p), n in sorted(self._counts.items())]}
