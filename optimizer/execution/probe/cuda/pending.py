"""Copies between the host and a device that do not wait: they are made once something has waited for the device.

A real copy is on its way for microseconds, in which its target holds whatever was there before. Here the target of a
copy to the host holds NaN (zeros, for whole numbers) until the host waits, so that code that reads it too early always
shows. Pinned memory that is copied to a device has to stay as it is until then: another content is an error here.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..recording import is_recording
from .marks import storages_of

WAITING = frozenset(
    "_local_scalar_dense equal is_nonzero masked_select nonzero _unique _unique2 unique_consecutive unique_dim".split()
)
"""Operations whose result on a device the host needs, and waits for."""


@dataclass(frozen=True)
class _Leaving:
    """What pinned memory held when a copy of it to a device was asked for.

    It is not kept alive: CUDA's allocator does not hand out the memory of a tensor that is gone before the copy is made.
    """

    storage: StorageWeakRef
    dtype: torch.dtype
    place: tuple[int, torch.Size, tuple[int, ...]]
    held: Tensor

    @classmethod
    def of(cls, source: Tensor) -> _Leaving:
        (storage,) = storages_of(source)
        place = int(source.storage_offset()), source.size(), source.stride()
        return cls(StorageWeakRef(storage), source.dtype, place, _bytes(source).clone())

    def check(self) -> None:
        """Raises RuntimeError where the memory is there and holds something else."""
        storage = cast("Any", torch.UntypedStorage)._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            return
        now = torch.empty(0, dtype=self.dtype).set_(storage, *self.place)
        if not torch.equal(_bytes(now), self.held):
            kind = f"{self.dtype} of shape {tuple(self.place[1])}"
            raise RuntimeError(
                f"pinned memory ({kind}) is written to while it may still be copied to the device: "
                "the copy was made with non_blocking=True, and the host has not waited since"
            )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class PendingCopies:
    """The copies that have not come yet."""

    def __init__(self) -> None:
        self._on_the_way: list[tuple[Tensor, Tensor]] = []
        self._leaving: dict[int, list[_Leaving]] = {}
        self._looking = False

    @property
    def watched(self) -> bool:
        """Whether there is memory that has to stay as it is."""
        return bool(self._leaving)

    @torch.no_grad()
    def start(self, copy: Tensor) -> None:
        """The host's ``copy``, which holds what it shall hold, is only on its way."""
        self._on_the_way.append((copy.detach(), copy.detach().clone()))
        copy.data.fill_(math.nan if copy.is_floating_point() else 0)

    @torch.no_grad()
    def leave(self, source: Tensor) -> None:
        """The pinned ``source`` is only being copied to a device."""
        for storage in storages_of(source):
            self._leaving.setdefault(storage._cdata, []).append(_Leaving.of(source))

    @torch.no_grad()
    def read_by_device(self, source: Tensor) -> None:
        """The host's ``source`` is copied from, behind all earlier copies to it: a device makes them in their order."""
        places = {storage._cdata for storage in storages_of(source)}
        for copy, value in self._on_the_way if places else ():
            if any(storage._cdata in places for storage in storages_of(copy)):
                copy.data.copy_(value)

    def written_by_device(self, target: Tensor) -> None:
        """The host's ``target`` was copied to, behind all earlier copies from it: a device makes them in their order."""
        for storage in storages_of(target):
            self._leaving.pop(storage._cdata, None)

    def written(self, targets: Iterable[Tensor]) -> None:
        """The host may have written to ``targets``. Raises RuntimeError where one of them was being copied."""
        if not self._looking:
            for storage in (one for target in targets for one in storages_of(target)):
                self._look(self._leaving.get(storage._cdata, ()))

    @torch.no_grad()
    def wait(self) -> None:
        """The host has waited for the device. Raises RuntimeError where what was being copied is another by now."""
        if is_recording():
            return
        come, self._on_the_way = self._on_the_way, []
        left, self._leaving = self._leaving, {}
        for copy, value in come:
            copy.data.copy_(value)
        self._look([one for of_storage in left.values() for one in of_storage])

    def _look(self, leaving: Iterable[_Leaving]) -> None:
        self._looking = True
        try:
            for one in leaving:
                one.check()
        finally:
            self._looking = False
