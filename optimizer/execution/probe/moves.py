"""Where saved files go: renamed, copied, removed."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from typing import Any

from .patches import Patches


class Moves:
    """Notes what becomes of the files at known paths, in the order of the saves.

    ``shown`` gives the path under which a file is told; ``now`` the rounds that have begun and the saves made by then.
    """

    def __init__(self, shown: Callable[[Any], str], now: Callable[[], tuple[int, int]]) -> None:
        self._shown, self._now = shown, now
        self._known: set[str] = set()
        self._noted: list[dict[str, Any]] = []

    def install(self, patches: Patches) -> None:
        """Patch the functions that others are made of: ``shutil.move``, ``Path.replace``."""
        for name in ("rename", "replace"):
            patches.wrap(os, name, functools.partial(self._moving, keeps=False))
        for name in ("remove", "unlink"):
            patches.wrap(os, name, self._removing)
        patches.wrap(shutil, "copyfile", functools.partial(self._moving, keeps=True))

    def saved(self, path: str) -> None:
        """A file is saved at ``path``."""
        self._known.add(path)

    def finish(self) -> dict[str, Any]:
        """What the record says of them."""
        return {"moves": self._noted}

    def _moving(self, original: Callable[..., Any], *, keeps: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(src, dst, *args, **kwargs):
            result = original(src, dst, *args, **kwargs)
            self._note(src, dst, keeps=keeps)
            return result

        return wrapper

    def _removing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(path, *args, **kwargs):
            result = original(path, *args, **kwargs)
            self._note(path, None, keeps=False)
            return result

        return wrapper

    def _note(self, source: Any, target: Any, *, keeps: bool) -> None:
        paths = [None if path is None else self._shown(path) for path in (source, target)]
        if self._known.isdisjoint(paths):
            return
        self._known.update(path for path in paths if path is not None)
        rounds, saves = self._now()
        moved = {"source": paths[0], "target": paths[1], "keeps": keeps}
        self._noted.append({**moved, "rounds": rounds, "saves": saves})
