"""What ``torch.save`` was given, leaf by leaf."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .attributes import told_attributes
from .fingerprints import dtype_name, sha256, storable, write_safetensors
from .modes import told_mode

SAVED = "saved.safetensors"
_REPR = 200
_ATTRIBUTE_REPR = 4000
_DEPTH = 20


class SavedTensors:
    """Keeps the saved tensors that are no parameters or buffers of the moment, ``whole_bytes`` of them, in ``folder``."""

    def __init__(self, folder: Path, whole_bytes: int) -> None:
        self._folder = folder
        self._left = whole_bytes
        self._kept: dict[str, Tensor] = {}

    def keep(self, tensor: Tensor) -> str | None:
        """Copy ``tensor``; the name it has in the file, None where it is too large."""
        self._left -= tensor.numel() * tensor.element_size()
        if self._left < 0:
            return None
        name = str(len(self._kept))
        self._kept[name] = storable(tensor).clone()
        return name

    def finish(self) -> dict[str, Any]:
        """What the record says of them."""
        if self._kept:
            write_safetensors(self._folder / SAVED, self._kept)
        return {"saved_file": SAVED if self._kept else None}


def describe(
    thing: Any, live: Mapping[str, list[str]], saved: SavedTensors
) -> dict[str, dict[str, Any]]:
    """The entries of a ``Checkpoint``: by nested keys joined with ``/``, the fields of a ``CheckpointEntry``.

    ``live`` names the parameters and buffers that have a hash now; other tensors are kept as ``saved``.
    """
    entries: dict[str, dict[str, Any]] = {}
    for keys, entry, tensor in _leaves(thing, ()):
        entries["/".join(keys)] = entry
        if tensor is not None:
            entry["same_as"] = live.get(entry["sha256"], [])
            entry["stored_as"] = None if entry["same_as"] else saved.keep(tensor)
    return entries


def _without_numpy(thing: Any) -> Any:
    """An array of numpy's as a tensor, a number of numpy's as Python's, where there is such a thing; else as it is."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(thing, (numpy.ndarray, numpy.generic)):
        return thing
    if isinstance(thing, numpy.generic):
        return thing.item()
    try:
        return torch.from_numpy(numpy.ascontiguousarray(thing))
    except (TypeError, ValueError):  # of objects, of strings
        return thing.tolist()


def _leaves(
    thing: Any, keys: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any], Tensor | None]]:
    thing = _without_numpy(thing)
    if isinstance(thing, Tensor):
        shape, dtype = list(thing.shape), dtype_name(thing)
        yield (
            keys,
            {"kind": "tensor", "shape": shape, "dtype": dtype, "sha256": sha256(thing)},
            thing,
        )
    elif isinstance(thing, nn.Module):
        name = type(thing).__name__
        yield keys, {"kind": name, "value": told_mode(thing)}, None
        yield from _leaves(thing.state_dict(), (*keys, f"{name}()"))
        yield from _attributes(thing, keys)
    elif isinstance(thing, Mapping) and len(keys) < _DEPTH:
        for key, value in thing.items():
            yield from _leaves(value, (*keys, str(key)))
    elif isinstance(thing, (list, tuple)) and len(keys) < _DEPTH:
        for position, value in enumerate(thing):
            yield from _leaves(value, (*keys, str(position)))
    else:
        simple = isinstance(thing, (bool, int, float, str, bytes, type(None)))
        value = repr(thing)[:_REPR] if simple else None
        yield keys, {"kind": type(thing).__name__, "value": value}, None
        yield from _attributes(thing, keys)


def _attributes(
    thing: Any, keys: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any], Tensor | None]]:
    for name, value in told_attributes(thing):
        key = (*keys, f"{type(thing).__name__}().{name}")
        if not isinstance(value, nn.Module):
            yield key, {"kind": type(value).__name__, "value": repr(value)[:_ATTRIBUTE_REPR]}, None
        elif len(key) < _DEPTH:
            yield from _leaves(value, key)
