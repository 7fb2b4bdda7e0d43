"""What is padding of what a network gives: where it says so itself, by the lengths of packed sequences or a mask of keys.

Behind a sentence's end a network may give anything: nothing but a bias where it was packed, what an empty word gets where it was not.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .patches import Patches

_DECODERS = (
    nn.RNNBase,
    nn.RNNCellBase,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
Padded = tuple[int, int, list[int]]
"""The position of an output, the dimension that is padded (0 or 1; the other is the samples'), the length of each sample."""


class _Told(NamedTuple):
    """``lengths`` of samples that are padded to ``width``, whose dimension is ``axis`` in what was told of."""

    lengths: tuple[int, ...]
    width: int
    axis: int


class Padding:
    """Notes in each call of a root module what its recurrent layers and encoders are told to be padded.

    Behind a decoder that is told no longer: what it gives are sequences of their own, which may happen to be as long.
    """

    def __init__(self) -> None:
        self._told: dict[_Told, None] = {}
        self._heeds = False

    def install(self, patches: Patches) -> None:
        """Hear of ``pad_packed_sequence``, and of the masks that ``nn.TransformerEncoder`` is given."""
        patches.wrap(nn.utils.rnn, "pad_packed_sequence", self._unpacking)
        patches.wrap(nn.TransformerEncoder, "forward", self._encoding)

    def begin(self, *, heeds: bool) -> None:
        """A root module is called; what is padded is only noted if the call ``heeds`` that."""
        self._told.clear()
        self._heeds = heeds

    def layer_called(self, layer: nn.Module, output: Any) -> None:
        """``layer`` was called inside of a root module: one that decodes, unless it is recurrent and took packed sequences."""
        packed = isinstance(output, tuple) and any(isinstance(x, PackedSequence) for x in output)
        if isinstance(layer, _DECODERS) and not packed:
            self._told.clear()

    def of(self, outputs: Sequence[Tensor]) -> list[Padded]:
        """Which of the ``outputs`` are padded as was told since: those with the samples and the width of one that was, in either order."""
        found: list[Padded] = []
        for position, output in enumerate(outputs):
            fitting = {told.lengths: told for told in self._told if _axes(told, output)}
            if len(fitting) == 1:  # of several nobody knows which it is
                (told,) = fitting.values()
                axes = _axes(told, output)
                axis = told.axis if told.axis in axes else axes[0]
                found.append((position, axis, list(told.lengths)))
        return found

    @staticmethod
    def left_out(outputs: Sequence[Tensor], padded: Sequence[Padded]) -> list[Tensor]:
        """``outputs`` with zeros in place of what is ``padded``."""
        found = list(outputs)
        for position, axis, lengths in padded:
            rows = found[position].detach().clone()
            within = torch.arange(rows.shape[axis], device=rows.device)
            behind = within >= torch.tensor(lengths, device=rows.device)[:, None]
            rows[behind if axis == 1 else behind.T] = 0
            found[position] = rows
        return found

    def _unpacking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(sequence, batch_first=False, *args, **kwargs):
            padded, lengths = original(sequence, batch_first, *args, **kwargs)
            if self._heeds and not torch.compiler.is_compiling():
                axis = 1 if batch_first else 0
                told = _Told(tuple(lengths.tolist()), padded.shape[axis], axis)
                self._told[told] = None
            return padded, lengths

        return wrapper

    def _encoding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(module, src, mask=None, src_key_padding_mask=None, *args, **kwargs):
            if (
                self._heeds
                and src_key_padding_mask is not None
                and not torch.compiler.is_compiling()
            ):
                self._masked(src_key_padding_mask, src)
            return original(module, src, mask, src_key_padding_mask, *args, **kwargs)

        return wrapper

    def _masked(self, mask: Tensor, source: Tensor) -> None:
        left_out = mask if mask.dtype == torch.bool else mask < 0
        lengths = (~left_out).sum(1)
        behind = torch.arange(mask.shape[1], device=mask.device) >= lengths[:, None]
        if torch.equal(left_out, behind):  # not where words in the middle are masked
            axis = 1 if source.shape[:2] == mask.shape else 0
            self._told[_Told(tuple(lengths.tolist()), mask.shape[1], axis)] = None


def _axes(told: _Told, output: Tensor) -> list[int]:
    """The dimensions of ``output`` that may be the padded one."""
    size = (len(told.lengths), told.width)
    shape = tuple(output.shape[:2])
    return [axis for axis, like in ((1, shape), (0, shape[::-1])) if like == size]
