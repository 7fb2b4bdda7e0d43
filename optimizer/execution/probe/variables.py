"""The variables of the running script, and what they lead to."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

_HERE = os.path.dirname(os.path.abspath(__file__))
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, also of an environment below or beside this one."""
_DEPTH = 4
_MOST = 20_000
"""Objects looked at."""
_LONGEST = 256
"""Entries of a container that is looked into."""


def reachable() -> Iterator[tuple[str, Any]]:
    """Objects by the names that lead to them (``ema.shadow``), each once: variables first, then what they hold.

    Looked into are lists, tuples and dicts, and objects of classes that are no library's; modules are not.
    """
    seen: set[int] = set()
    waiting = [(path, thing, 0) for path, thing in _variables()]
    place = 0
    while place < len(waiting) and len(seen) < _MOST:
        path, thing, depth = waiting[place]
        place += 1
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        yield path, thing
        if depth < _DEPTH:
            waiting += [(name, part, depth + 1) for name, part in _parts(path, thing)]


def _variables() -> Iterator[tuple[str, Any]]:
    """The variables of the frames that run the script, the innermost first, then globals."""
    frame: FrameType | None = sys._getframe()
    outer: list[dict[str, Any]] = []
    while frame is not None:
        if _is_users(frame):
            if frame.f_locals is not frame.f_globals:
                yield from list(frame.f_locals.items())
            if not any(frame.f_globals is known for known in outer):
                outer.append(frame.f_globals)
        frame = frame.f_back
    for variables in outer:
        yield from ((name, v) for name, v in list(variables.items()) if not name.startswith("__"))


def _is_users(frame: FrameType) -> bool:
    return not is_library(frame.f_code.co_filename)


def is_library(file: str) -> bool:
    """Whether this file of code is no part of the user's project."""
    return file.startswith(("<", _HERE, *_LIBRARIES)) or not _INSTALLED.isdisjoint(Path(file).parts)


def _parts(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    kind = type(thing)
    if kind in (list, tuple):
        if len(thing) <= _LONGEST:
            yield from ((f"{path}[{place}]", part) for place, part in enumerate(thing))
    elif kind is dict:
        if len(thing) <= _LONGEST:
            named = ((key, part) for key, part in list(thing.items()) if isinstance(key, str))
            yield from ((f"{path}[{key!r}]", part) for key, part in named)
    elif not issubclass(kind, (type, Tensor, Optimizer, nn.Module)):
        top = str(kind.__module__).partition(".")[0]
        if top in ("builtins", "torch", "numpy"):
            return
        try:
            attributes: dict[str, Any] = object.__getattribute__(thing, "__dict__")
        except Exception:  # whatever a class of the script's own may do
            return
        # Of `self.model` the path is that of a variable `model`: who holds it is a matter of style.
        own = "" if path == "self" else f"{path}."
        yield from ((f"{own}{name}", part) for name, part in list(attributes.items()))
