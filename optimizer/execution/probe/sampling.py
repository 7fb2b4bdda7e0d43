"""Which samples a pass over a loader reads, and in which order."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from typing import Any


class ReadOrder:
    """The indices a loader asks its data set for, as digests after each batch.

    They are kept per batch asked for, which with workers runs ahead of the batches given, and cut off at the end.
    Where the data set is ``part`` of another one, so are the indices in that.
    """

    def __init__(self, part: Sequence[Any] | None = None) -> None:
        self._whole = None if part is None else _OrderInWhole(part)
        self._order = hashlib.blake2b(digest_size=8)
        self._contents = 0
        self._seen: set[int] = set()
        self._count = 0
        self._last: Any = None
        self._ascending = True
        self._marks: list[list[Any]] = []

    def asked(self, index: Any, collated: bool) -> None:
        """A batch of the samples ``index`` is asked for; a single one where it is no list and batches are not ``collated``."""
        if self._whole is not None:
            self._whole.asked(index, collated)
        for one in index if collated or isinstance(index, list) else (index,):
            if one is not None:  # an IterableDataset has no indices
                self._add(_plain(one))
        self._marks.append(
            [
                self._count,
                self._order.hexdigest(),
                f"{self._contents:016x}",
                len(self._seen),
                self._ascending,
            ]
        )

    def _add(self, index: Any) -> None:
        bits = hashlib.blake2b(repr(index).encode(), digest_size=8).digest()
        number = int.from_bytes(bits, "big")
        self._order.update(bits)
        self._contents = (self._contents + number) % 2**64
        self._seen.add(number)
        follows = self._last is None or (isinstance(index, int) and index > self._last)
        self._ascending = self._ascending and isinstance(index, int) and follows
        self._last = index
        self._count += 1

    def size(self, batch: int) -> int:
        """How many samples the batch of that number, counted from 0, was asked for; 0 where that is not known."""
        if batch >= len(self._marks):
            return 0
        return self._marks[batch][0] - (self._marks[batch - 1][0] if batch else 0)

    def first(self, batches: int) -> list[list[Any]]:
        """The marks of the first ``batches`` batches (the fields of a ``ReadMark``); none without indices."""
        return self._marks[:batches] if self._count else []

    def in_whole(self, batches: int) -> dict[str, Any]:
        """``part`` and ``order_in_whole`` of a ``LoaderPass``, where that is known."""
        if self._whole is None:
            return {}
        return {"part": self._whole.part, "order_in_whole": self._whole.first(batches)}


class _OrderInWhole(ReadOrder):
    """The indices in the set that a ``Subset`` is of."""

    def __init__(self, indices: Sequence[Any]) -> None:
        super().__init__()
        self._indices = indices
        told = repr([_plain(index) for index in indices]).encode()
        self.part = hashlib.blake2b(told, digest_size=8).hexdigest()

    def _add(self, index: Any) -> None:
        super()._add(_plain(self._indices[index]))


def _plain(index: Any) -> Any:
    """An index as an int, whatever kind of integer the sampler gave."""
    try:
        return operator.index(index)
    except TypeError:
        return index
