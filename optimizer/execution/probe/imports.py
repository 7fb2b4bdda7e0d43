"""Two things done at import time: modules of the project come from the mirror, native code learns to redirect."""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .more_digits import MoreDigitsLoader
from .redirect import DROP, KEEP, READ, Redirection

_PATHS = (str, bytes, os.PathLike)


@dataclass(frozen=True)
class _NativeFile:
    """A function that goes to a file without Python: where its path is, and what it does to it.

    With a ``mode`` (the position of the parameter of that name) the mode decides, as for ``open``.
    """

    function: str
    position: int
    keyword: str
    how: str
    mode: int | None = None

    def use(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """What this call does to the file."""
        if self.mode is None:
            return self.how
        given = args[self.mode] if self.mode < len(args) else kwargs.get("mode", "r")
        return {"r": READ, "w": DROP}.get(given, KEEP)


_NATIVE_FILES = {
    "cv2": (_NativeFile("imwrite", 0, "filename", DROP),),
    "h5py._hl.files": (_NativeFile("File.__init__", 1, "name", KEEP, mode=2),),
    "safetensors": (_NativeFile("serialize_file", 1, "filename", DROP),),
    "soundfile": (_NativeFile("write", 0, "file", DROP),),
    "sqlite3.dbapi2": (_NativeFile("connect", 0, "database", KEEP),),
    "sqlite3": (_NativeFile("connect", 0, "database", KEEP),),
    "torch.autograd.profiler": (_NativeFile("profile.export_chrome_trace", 1, "path", DROP),),
    "torch.jit._serialization": (
        _NativeFile("save", 1, "f", DROP),
        _NativeFile("load", 0, "f", READ),
    ),
    "torch.serialization": (
        _NativeFile("save", 1, "f", DROP),
        _NativeFile("load", 0, "f", READ),
    ),
    "torchvision.io.image": (
        _NativeFile("write_file", 0, "filename", DROP),
        _NativeFile("write_jpeg", 1, "filename", DROP),
        _NativeFile("write_png", 1, "filename", DROP),
    ),
}
"""By module. Extend where a library goes to files natively."""


class ProjectImporter:
    """A meta path finder in front of all others, which it asks.

    With ``more_digits`` the project's modules print their numbers with more digits.
    """

    def __init__(self, redirection: Redirection) -> None:
        self._redirection = redirection
        self._after: dict[str, list[Callable[[ModuleType], None]]] = {}
        self.more_digits = False
        for name, files in _NATIVE_FILES.items():
            for file in files:
                self.after_import(name, functools.partial(self._redirect, file))

    def after_import(self, name: str, action: Callable[[ModuleType], None]) -> None:
        """Call ``action`` with the module ``name`` as soon as it has been imported, or now if it has been."""
        if name in sys.modules:
            action(sys.modules[name])
        else:
            self._after.setdefault(name, []).append(action)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec the other finders give, moved into the mirror where the mirror has a file of its own."""
        spec = None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                break
        if spec is None:
            return None
        spec = self._moved(spec)
        if name in self._after and spec.loader is not None:
            self._call_after(spec.loader, self._after.pop(name))
        return spec

    def _moved(self, spec: ModuleSpec) -> ModuleSpec:
        """Real paths get onto ``sys.path`` too: by ``realpath(__file__)``, a ``.pth`` file, an editable install."""
        loader, origin = spec.loader, spec.origin
        if not isinstance(loader, importlib.machinery.SourceFileLoader) or not origin:
            return spec
        mirror = self._redirection.mirror
        place = mirror.place(os.path.abspath(origin))
        if place is None or not mirror.unfolded(os.path.dirname(place)):
            return spec
        if place == origin and not self.more_digits:
            return spec
        locations = spec.submodule_search_locations
        return importlib.util.spec_from_file_location(
            spec.name,
            place,
            loader=MoreDigitsLoader(spec.name, place) if self.more_digits else None,
            submodule_search_locations=None if locations is None else [os.path.dirname(place)],
        )  # pyright: ignore[reportReturnType]

    def _call_after(self, loader: Any, actions: list[Callable[[ModuleType], None]]) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in actions:
                action(module)

        loader.exec_module = exec_module

    def _redirect(self, file: _NativeFile, module: ModuleType) -> None:
        owner: Any = module
        *owners, name = file.function.split(".")
        for part in owners:
            owner = getattr(owner, part, None)
        function = getattr(owner, name, None)
        if function is None:
            return
        ready, position = self._redirection.ready, file.position

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            how = file.use(args, kwargs)
            if isinstance(kwargs.get(file.keyword), _PATHS):
                kwargs[file.keyword] = ready(kwargs[file.keyword], how)
            elif position < len(args) and isinstance(args[position], _PATHS):
                args = (*args[:position], ready(args[position], how), *args[position + 1 :])
            return function(*args, **kwargs)

        setattr(owner, name, wrapper)
        # What was imported before the probe has it by names of its own (torch.save).
        for other in list(sys.modules.values()):
            if getattr(other, "__dict__", {}).get(name) is function:
                setattr(other, name, wrapper)
