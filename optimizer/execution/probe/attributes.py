"""Attributes of objects of the script's own that are saved whole: what comes back with them where they are loaded.

Told are those that are plain (numbers, words, and lists, tuples and dicts of such), those of objects in them, and networks. Tensors among
them may be scratch space, whose content means nothing, and what begins with an underscore is nobody else's business.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from .variables import is_library

_SIMPLE = (bool, int, float, type(None))
_MOST = 10_000
"""Plain parts of an attribute that is told: a memory of all that an agent has seen is no setting, nor is a text to train on."""
_CHARACTERS = 50
"""As much as one part."""
_DEEPEST = 4
"""Objects in objects."""
_MODULES_OWN = frozenset(vars(nn.Module()))
"""What a module has by being one; the mode is told by itself."""


def told_attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of ``thing`` by their names (``history.losses``), of a module those of the modules in it as well, but no networks."""
    for name, value in _attributes(thing, "", {id(thing)}):
        if not (isinstance(thing, nn.Module) and isinstance(value, nn.Module)):
            yield name, value


def _attributes(thing: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    parts = thing.named_modules() if isinstance(thing, nn.Module) else [("", thing)]
    for place, part in parts:
        if not _is_own(type(part)):
            continue
        attributes: dict[str, Any] = getattr(part, "__dict__", {})
        for name, value in attributes.items():
            if name.startswith("_") or name in _MODULES_OWN:
                continue
            full = ".".join(filter(None, (path, place, name)))
            if isinstance(value, nn.Module) or _is_plain(value):
                yield full, value
            elif id(value) not in seen and len(seen) <= _DEEPEST and not isinstance(value, type):
                yield from _attributes(value, full, {*seen, id(value)})


def _is_own(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and not is_library(file)


def _is_plain(value: Any) -> bool:
    """Whether there is nothing else in ``value``, which may hold itself."""
    waiting, seen = [value], 0
    while waiting:
        part = waiting.pop()
        seen += 1
        if type(part) is dict:
            waiting.extend(part)
            waiting.extend(part.values())
        elif type(part) in (list, tuple):
            waiting.extend(part)
        elif type(part) in (str, bytes):
            seen += len(part) // _CHARACTERS
        elif type(part) not in _SIMPLE:
            return False
        if seen + len(waiting) > _MOST:
            return False
    return True
