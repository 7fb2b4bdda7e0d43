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
from torch.nn.utils.rnn import PackedSequence

from .functions import Functions
from .patches import Patches
from .symbolic import is_traced

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
_MOST = 500
"""So many shapes of the first call are kept."""


class Dropouts:
    """Counts what is dropped out in training; ``off`` has nothing dropped.

    ``noting`` says whether a call of a model is going on of which the shapes are to be kept.
    """

    def __init__(self, noting: Callable[[], bool], *, off: bool) -> None:
        self._noting, self._off = noting, off
        self._counts: Counter[tuple[str, float]] = Counter()
        self._first: list[tuple[float, list[int]]] = []

    def install(self, patches: Patches, functions: Functions) -> None:
        """Replace torch's functions and layers that drop elements."""
        for name in _FUNCTIONS:
            functions.wrap(name, functools.partial(self._function, name))
        functions.wrap(_ATTENTION, self._attention)
        for layer in _RECURRENT:
            patches.wrap(layer, "forward", self._recurrent)

    def _probability(self, name: str, p: float, *shape: int) -> float:
        """What to drop elements of a tensor of this ``shape`` with, instead of ``p``."""
        if p and torch.is_grad_enabled() and not is_traced():
            self._counts[name, float(p)] += 1
            if self._noting() and len(self._first) < _MOST:
                self._first.append((float(p), list(shape)))
        return 0.0 if self._off else p

    def _function(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        by_default = "alpha" not in name

        @functools.wraps(original)
        def wrapper(input, p=0.5, training=by_default, inplace=False):
            if training:
                p = self._probability(name, p, *input.shape)
            return original(input, p, training, inplace)

        return wrapper

    def _attention(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs):
            weights = (*query.shape[:-1], key.shape[-2])
            dropout_p = self._probability(_ATTENTION, dropout_p, *weights)
            return original(query, key, value, attn_mask, dropout_p, *args, **kwargs)

        return wrapper

    def _recurrent(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(layer, input, *args, **kwargs):
            own = layer.dropout
            if layer.training and layer.num_layers > 1:
                rows = input.data if isinstance(input, PackedSequence) else input
                layer.dropout = self._probability(type(layer).__name__, own, *rows.shape)
            try:
                return original(layer, input, *args, **kwargs)
            finally:
                layer.dropout = own

        return wrapper

    def finish(self) -> dict[str, Any]:
        """What the record says of it."""
        return {
            "dropouts": [[name, p, n] for (name, p), n in sorted(self._counts.items())],
            "first_dropouts": self._first,
        }
