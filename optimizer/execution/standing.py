"""The checkpoints that lay on disk whenever a training step began, and at the end: however they came there.

A script may save to another name and rename the file, copy the best of them, or save twice. Who reads them later sees
none of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .recorded import Checkpoint, Move

STREAM = "<stream>"
"""The last part of the path of what is saved in no file."""


def standing(
    saves: Sequence[Checkpoint], moves: Iterable[Move]
) -> tuple[tuple[Checkpoint, ...], tuple[str, ...]]:
    """Those of ``saves``, and their copies, with the rounds that had begun when they came there; and the paths that have
    none any more at the end, though they had."""
    disk = _Disk()
    left = sorted(moves, key=lambda move: move.saves)
    for number, save in enumerate(saves):
        while left and left[0].saves <= number:
            disk.move(left.pop(0))
        disk.save(save)
    for move in left:
        disk.move(move)
    disk.settle()
    return tuple(disk.stood), disk.gone()


class _Disk:
    """What each path holds, and what ``stood`` there when a step began."""

    def __init__(self) -> None:
        self.stood: list[Checkpoint] = []
        self._holds: dict[str, Checkpoint] = {}
        self._fresh: dict[str, None] = {}
        self._rounds = 0

    def save(self, save: Checkpoint) -> None:
        self._at(save.rounds)
        if save.path.endswith(STREAM):
            self.stood.append(save)
        else:
            self._put(save.path, save)

    def move(self, move: Move) -> None:
        self._at(move.rounds)
        held = self._holds.get(move.source)
        if not move.keeps:
            self._put(move.source, None)
        if move.target is not None:
            self._put(move.target, held and replace(held, path=move.target, rounds=move.rounds))

    def settle(self) -> None:
        """A step begins, or the run has ended."""
        self.stood += [self._holds[path] for path in self._fresh]
        self._fresh.clear()

    def gone(self) -> tuple[str, ...]:
        return tuple(sorted({save.path for save in self.stood} - self._holds.keys()))

    def _at(self, rounds: int) -> None:
        if rounds != self._rounds:
            self.settle()
            self._rounds = rounds

    def _put(self, path: str, save: Checkpoint | None) -> None:
        self._fresh.pop(path, None)
        if save is None:
            self._holds.pop(path, None)
        else:
            self._holds[path] = save
            self._fresh[path] = None
