"""What was measured, written down at once, so that an interrupted search goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import TorchoptError

SCHEMA = 1


class Journal:
    """The measurements of a search, in the file ``path``; ``key`` is what they hold for: script, arguments, machine.

    Without ``resume`` it begins empty. Raises TorchoptError when the file is no journal, or one of something else.
    """

    def __init__(self, path: Path, key: Mapping[str, object], *, resume: bool) -> None:
        self._path = path
        self._key = _digest(key)
        self._entries: dict[str, Any] = {}
        if resume and path.exists():
            self._entries = self._read()

    def _read(self) -> dict[str, Any]:
        try:
            document: Any = json.loads(self._path.read_text(encoding="utf-8"))
            schema, key, entries = document["schema"], document["key"], document["entries"]
        except (OSError, ValueError, TypeError, KeyError):
            raise TorchoptError("--resume: is no journal of `torchopt tune`", self._path) from None
        if (schema, key) != (SCHEMA, self._key):
            told = "--resume: was written for another script, other arguments or another machine"
            raise TorchoptError(told, self._path)
        return entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, what: Mapping[str, object]) -> Any:
        """What was noted about ``what``, None if nothing was."""
        return self._entries.get(_digest(what))

    def note(self, what: Mapping[str, object], value: object) -> None:
        """Write down ``value``, which JSON can hold, before anything else happens."""
        self._entries[_digest(what)] = value
        document = {"schema": SCHEMA, "key": self._key, "entries": self._entries}
        new = self._path.with_name(self._path.name + ".new")
        new.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(new, self._path)


def _digest(value: Mapping[str, object]) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
