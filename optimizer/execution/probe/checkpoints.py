"""What ``torch.save`` was given, leaf by leaf."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from .fingerprints import dtype_name, sha256

_REPR = 200
_DEPTH = 20


def describe(thing: Any, live: Mapping[str, list[str]]) -> dict[str, dict[str, Any]]:
    """The entries of a ``Checkpoint``: by nested keys joined with ``/``, the fields of a ``CheckpointEntry``.

    ``live`` names the parameters and buffers that have a hash now.
    """
    entries = {"/".join(keys): entry for keys, entry in _leaves(thing, ())}
    for entry in entries.values():
        if "sha256" in entry:
            entry["same_as"] = live.get(entry["sha256"], [])
    return entries


def _leaves(thing: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if isinstance(thing, Tensor):
        shape, dtype = list(thing.shape), dtype_name(thing)
        yield keys, {"kind": "tensor", "shape": shape, "dtype": dtype, "sha256": sha256(thing)}
    elif isinstance(thing, nn.Module):
        name = type(thing).__name__
        yield keys, {"kind": name}
        yield from _leaves(thing.state_dict(), (*keys, f"{name}()"))
    elif isinstance(thing, Mapping) and len(keys) < _DEPTH:
        for key, value in thing.items():
            yield from _leaves(value, (*keys, str(key)))
    elif isinstance(thing, (list, tuple)) and len(keys) < _DEPTH:
        for position, value in enumerate(thing):
            yield from _leaves(value, (*keys, str(position)))
    else:
        simple = isinstance(thing, (bool, int, float, str, bytes, type(None)))
        value = repr(thing)[:_REPR] if simple else None
        yield keys, {"kind": type(thing).__name__, "value": value}
