"""Copies to the host that do not wait: what they write is there once something has waited for the device.

A real copy is on its way for microseconds, in which its target holds whatever was there before. Here the target holds
NaN (zeros, for whole numbers) until the host waits, so that code that reads it too early always shows.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math

import torch
from torch import Tensor

WAITING = frozenset(
    "_local_scalar_dense equal is_nonzero masked_select nonzero _unique _unique2 unique_consecutive unique_dim".split()
)
"""Operations whose result on a device the host needs, and waits for."""


class PendingCopies:
    """The copies that have not come yet."""

    def __init__(self) -> None:
        self._on_the_way: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def start(self, copy: Tensor) -> None:
        """The host's ``copy``, which holds what it shall hold, is only on its way."""
        self._on_the_way.append((copy.detach(), copy.detach().clone()))
        copy.data.fill_(math.nan if copy.is_floating_point() else 0)

    @torch.no_grad()
    def wait(self) -> None:
        """The host has waited for the device."""
        come, self._on_the_way = self._on_the_way, []
        for copy, value in come:
            copy.data.copy_(value)
