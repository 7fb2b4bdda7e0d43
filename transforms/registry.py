"""Finds the transforms: every :class:`Transform` defined in a module of this package."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from .base import Transform

_NOT_TRANSFORMS = frozenset({"base", "registry"})


@cache
def all_transforms() -> tuple[Transform, ...]:
    """One instance of every transform, in the order they are applied."""
    package = __package__ or ""
    classes: dict[str, type[Transform]] = {}
    for module_info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module_info.name in _NOT_TRANSFORMS:
            continue
        module = importlib.import_module(f"{package}.{module_info.name}")
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, Transform)
                and value.__module__ == module.__name__
            ):
                classes[value.name] = value
    return tuple(
        sorted((cls() for cls in classes.values()), key=lambda t: (t.stage, t.rank, t.name))
    )
