"""Attributes of objects of the script's own that are saved whole: what comes back with them where they are loaded.

Told are those that are plain: numbers, words, and lists, tuples and dicts of such. Tensors among them may be scratch space, whose
content means nothing, and what begins with an underscore is nobody else's business.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from .variables import is_library

_SIMPLE = (bool, int, float, str, bytes, type(None))
_MOST = 10_000
"""Plain parts of an attribute that is told: a memory of all that an agent has seen is no setting."""
_MODULES_OWN = frozenset(vars(nn.Module()))
"""What a module has by being one; the mode is told by itself."""


def plain_attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """The plain attributes of ``thing``, and of the modules in it; ``thing`` is of a class of the script's own."""
    parts = thing.named_modules() if isinstance(thing, nn.Module) else [("", thing)]
    for path, part in parts:
        if not _is_own(type(part)):
            continue
        attributes: dict[str, Any] = getattr(part, "__dict__", {})
        for name, value in attributes.items():
            if not name.startswith("_") and name not in _MODULES_OWN and _is_plain(value):
                yield f"{path}.{name}" if path else name, value


def _is_own(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and not is_library(file)


def _is_plain(value: Any) -> bool:
    """Whether there is nothing else in ``value``, which may hold itself."""
    waiting, seen = [value], 0
    while waiting:
        part = waiting.pop()
        seen += 1
        if seen + len(waiting) > _MOST:
            return False
        if type(part) is dict:
            waiting.extend(part)
            waiting.extend(part.values())
        elif type(part) in (list, tuple):
            waiting.extend(part)
        elif type(part) not in _SIMPLE:
            return False
    return True
