"""Finds the transforms: every :class:`Transform` defined in a module of this package."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from .base import Stage, Transform

_NOT_TRANSFORMS = frozenset({"base", "registry"})


@dataclass(frozen=True)
class BrokenTransform:
    """A module of this package that cannot be imported; its transforms are missing, the others are not."""

    name: str
    path: Path | None
    error: Exception


@cache
def all_transforms() -> tuple[Transform, ...]:
    """One instance of every transform, in the order they are applied."""
    classes = {
        value.name: value
        for module in _modules()
        if not isinstance(module, BrokenTransform)
        for value in vars(module).values()
        # Not issubclass: Python 3.10 takes an alias such as tuple[int] for a class, and raises.
        if Transform in getattr(value, "__mro__", ()) and value.__module__ == module.__name__
    }
    return tuple(
        sorted((cls() for cls in classes.values()), key=lambda t: (t.stage, t.rank, t.name))
    )


def changing(transforms: Sequence[Transform]) -> tuple[str, ...]:
    """The names of those that are there to change scripts, not to give advice on the result."""
    return tuple(transform.name for transform in transforms if transform.stage is not Stage.ADVICE)


def broken_transforms() -> tuple[BrokenTransform, ...]:
    """The modules that cannot be imported."""
    return tuple(module for module in _modules() if isinstance(module, BrokenTransform))


@cache
def _modules() -> tuple[ModuleType | BrokenTransform, ...]:
    package = importlib.import_module(__package__ or "")
    return tuple(
        _imported(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
        if found.name not in _NOT_TRANSFORMS
    )


def _imported(name: str) -> ModuleType | BrokenTransform:
    try:
        return importlib.import_module(name)
    except Exception as error:
        transform = name.rpartition(".")[2].replace("_", "-")
        spec = importlib.util.find_spec(name)
        path = Path(spec.origin) if spec is not None and spec.origin else None
        return BrokenTransform(transform, path, error)
