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
_NEEDED = ("name", "tier", "stage", "example", "plan")


@dataclass(frozen=True)
class BrokenTransform:
    """A module of this package that cannot be imported, or holds no whole transform: it is missing, the others are not."""

    name: str
    path: Path | None
    error: Exception


@cache
def all_transforms() -> tuple[Transform, ...]:
    """One instance of every transform, in the order they are applied."""
    modules = (module for module in _modules() if not isinstance(module, BrokenTransform))
    made = (cls() for module in modules for cls in _classes(module))
    return tuple(sorted(made, key=lambda t: (t.stage, t.rank, t.name)))


def changing(transforms: Sequence[Transform]) -> tuple[str, ...]:
    """The names of those that are there to change scripts, not to give advice on the result."""
    return tuple(transform.name for transform in transforms if transform.stage is not Stage.ADVICE)


def broken_transforms() -> tuple[BrokenTransform, ...]:
    """The modules that cannot be imported, or hold no whole transform."""
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
    transform = name.rpartition(".")[2].replace("_", "-")
    try:
        module = importlib.import_module(name)
        _require_whole(_classes(module), transform)
        return module
    except Exception as error:
        spec = importlib.util.find_spec(name)
        path = Path(spec.origin) if spec is not None and spec.origin else None
        return BrokenTransform(transform, path, error)


def _classes(module: ModuleType) -> list[type[Transform]]:
    """The transforms that ``module`` defines."""
    return [
        value
        for value in vars(module).values()
        # Not issubclass: Python 3.10 takes an alias such as tuple[int] for a class, and raises.
        if Transform in getattr(value, "__mro__", ()) and value.__module__ == module.__name__
    ]


def _require_whole(classes: Sequence[type[Transform]], transform: str) -> None:
    """Raise TypeError unless ``classes`` is one, with all that a transform needs and the ``transform``'s name.

    Of two transforms with the same name, as of a module and the one that it was copied from, one would replace the other.
    """
    if len(classes) != 1:
        found = f"{len(classes)} transforms, not one" if classes else "no transform"
        raise TypeError(f"it defines {found}")
    (cls,) = classes
    lacking = [
        f"`{needed}`"
        for needed in _NEEDED
        if not hasattr(cls, needed) or needed in cls.__abstractmethods__
    ]
    if lacking:
        raise TypeError(f"`{cls.__name__}` has no {' and no '.join(lacking)}")
    if cls.name != transform:
        raise TypeError(
            f"`{cls.__name__}` is named {cls.name!r}, not {transform!r} like its module"
        )
