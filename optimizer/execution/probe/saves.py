"""What a script saves: by ``torch.save`` and in pickled bytes, and where the files go."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from .checkpoints import SavedTensors, describe
from .moves import Moves
from .pickled import Pickled
from .rounds import Rounds


class Saves:
    """Notes what is saved, in its order, with the ``rounds`` that have begun.

    ``tensors`` keeps what is no parameter or buffer of the moment; ``live`` names those by their hashes. ``attempt`` runs what
    may fail for want of an understanding of the script's objects. Once the run ``is_over``, nothing is noted.
    """

    def __init__(
        self,
        tensors: SavedTensors,
        live: Callable[[], Mapping[str, list[str]]],
        rounds: Rounds,
        attempt: Callable[[Callable[[], object]], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._tensors, self._live, self._rounds = tensors, live, rounds
        self._attempt, self._is_over = attempt, is_over
        self._cwd = os.getcwd()
        self._noted: list[dict[str, Any]] = []
        self.moves = Moves(self._shown, lambda: (self._rounds.begun, len(self._noted)))
        self.pickled = Pickled(self._described)

    def saved(self, thing: Any, file: Any) -> None:
        """``torch.save`` is called."""
        if self._is_over():
            return
        named = isinstance(file, (str, bytes, os.PathLike))
        path = self._shown(file if named else getattr(file, "name", None))
        noted: dict[str, Any] = {"path": path, "rounds": self._rounds.begun, "entries": {}}
        self.moves.saved(path)
        self._noted.append(noted)
        if described := self._described(thing):
            noted["entries"] = described[1]

    def finish(self) -> dict[str, Any]:
        """What the record says of ``torch.save``."""
        return {"checkpoints": self._noted}

    def _described(self, thing: Any) -> tuple[int, dict[str, Any]] | None:
        """The rounds that have begun, and what ``thing`` is that is saved now; None once the run is over, or where it cannot be told."""
        if self._is_over():
            return None
        entries: dict[str, Any] = {}
        self._attempt(lambda: entries.update(describe(thing, self._live(), self._tensors)))
        return (self._rounds.begun, entries) if entries else None

    def _shown(self, file: Any) -> str:
        """The path of a file as it is told: relative to the working directory where it lies below it."""
        name = os.fsdecode(file) if isinstance(file, (str, bytes, os.PathLike)) else "<stream>"
        path = os.path.normpath(os.path.join(os.getcwd(), name))
        relative = os.path.relpath(path, self._cwd)
        return path if relative.startswith("..") else relative
