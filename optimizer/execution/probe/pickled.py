"""What the script pickles into bytes, to write them to a file by itself.

The bytes of a pickled tensor hold an address, so they differ where nothing else does. Which file they went to shows in its content
(see ``written_files.py``).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import hashlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

from .patches import Patches
from .variables import is_library

_BYTES = 256 << 20
"""Described in all: pickling is also a way to copy, or to send things."""


class Pickled:
    """Notes what is pickled, by the digest of the bytes; ``describe`` gives the rounds begun and the entries of a ``Checkpoint``."""

    def __init__(self, describe: Callable[[Any], tuple[int, dict[str, Any]] | None]) -> None:
        self._describe = describe
        self._left = _BYTES
        self._noted: dict[str, dict[str, Any]] = {}
        self.at_work = False
        """Whether something is being pickled: the storage of each tensor is saved by torch.save then."""

    def install(self, patches: Patches) -> None:
        """Patch ``pickle.dumps``; what libraries do with it is a matter of theirs."""
        patches.wrap(pickle, "dumps", self._dumps)

    def finish(self) -> dict[str, Any]:
        """What the record says of it."""
        return {"pickled": self._noted}

    def _dumps(self, original: Callable[..., bytes]) -> Callable[..., bytes]:
        @functools.wraps(original)
        def wrapper(obj, *args, **kwargs):
            before, self.at_work = self.at_work, True
            try:
                content = original(obj, *args, **kwargs)
            finally:
                self.at_work = before
            if not is_library(sys._getframe(1).f_code.co_filename):
                self._note(obj, content)
            return content

        return wrapper

    def _note(self, thing: Any, content: bytes) -> None:
        self._left -= len(content)
        if self._left < 0:
            return
        digest = hashlib.blake2b(content).hexdigest()
        described = None if digest in self._noted else self._describe(thing)
        if described is not None:
            self._noted[digest] = {"rounds": described[0], "entries": described[1]}
