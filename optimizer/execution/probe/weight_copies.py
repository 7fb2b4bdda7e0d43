"""Weights beside the trained ones: averages, target networks, frozen parts, wherever the script keeps them.

They are found by walking from the variables of the script that is running, by name: modules that no optimizer trains,
and dicts and lists of tensors that have the trained parameters' names or shapes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .fingerprints import norm, plain, total_bytes, write_safetensors
from .names import entries_of, unwrap
from .parameters import Parameters
from .variables import reachable

FIRST_COPIES, LAST_COPIES = "copies-first.safetensors", "copies-last.safetensors"


class WeightCopies:
    """Looks for copies of the weights after the first round and at the end; what they hold goes to ``folder``."""

    def __init__(self, parameters: Parameters, folder: Path, whole_bytes: int) -> None:
        self._parameters = parameters
        self._folder = folder
        self._whole_bytes = whole_bytes
        self._kept: dict[str, Any] = {}
        self._files: dict[str, str] = {}

    def look_first(self) -> None:
        """Find the copies that the running script's variables lead to, and write them."""
        self._kept = dict(self._walk())
        self._write(FIRST_COPIES, self._kept)

    def look_again(self) -> None:
        """Write them as they are now; those that variables now lead to may have taken the place of others."""
        found = dict(self._walk())
        self._write(LAST_COPIES, {path: found.get(path, old) for path, old in self._kept.items()})

    def finish(self) -> dict[str, Any]:
        """What the record says of them. A script that came to its end has no variables; what they held is still here."""
        if self._kept and LAST_COPIES not in self._files:
            self._write(LAST_COPIES, self._kept)
        return {
            "first_copies_file": self._files.get(FIRST_COPIES),
            "last_copies_file": self._files.get(LAST_COPIES),
        }

    def _write(self, file: str, holders: Mapping[str, Any]) -> None:
        trained = {id(parameter) for parameter in self._parameters.named.values()}
        # whose buffers are recorded as such
        roots = {id(unwrap(root)) for root, _ in self._parameters.roots}
        tensors = {
            f"{path}/{key}": tensor
            for path, holder in holders.items()
            for key, tensor in _held_by(holder, buffers=id(holder) not in roots)
            if id(tensor) not in trained and tensor.is_floating_point() and not tensor.is_meta
        }
        if tensors and total_bytes(tensors.values()) <= self._whole_bytes:
            write_safetensors(self._folder / file, tensors)
            self._files[file] = file

    def _walk(self) -> Iterator[tuple[str, Any]]:
        """The holders of copies, by the names that lead to them."""
        named = self._parameters.named
        by_key = {name.partition(".")[2] or name: parameter for name, parameter in named.items()}
        roots = {id(unwrap(root)): label for root, label in self._parameters.roots}
        for path, thing in reachable():
            if issubclass(type(thing), nn.Module):
                module = unwrap(thing)
                yield roots.get(id(module), path), module
            elif _alike(_beside_parameters(thing, by_key)):
                yield path, thing


def _beside_parameters(thing: Any, parameters: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The tensors in a dict or list, each with the trained parameter it may be a copy of."""
    if issubclass(type(thing), dict):
        pairs = ((v, parameters.get(key)) for key, v in _entries(thing) if type(key) is str)
        return [(v, p) for v, p in pairs if issubclass(type(v), Tensor) and p is not None]
    return _in_order(thing, list(parameters.values())) if type(thing) in (list, tuple) else []


def _entries(thing: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """What a dict holds. A class of its own may import a library, or fail, where it is asked for its items."""
    return list(dict.items(thing))


def _in_order(thing: Sequence[Any], parameters: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The tensors of a list with the trained parameters that have their shapes in this order; none if there are none."""
    count = len(thing)
    if not 1 < count <= len(parameters) or not all(issubclass(type(t), Tensor) for t in thing):
        return []
    shapes = [part.shape for part in thing]
    for start in range(len(parameters) - count + 1):
        these = parameters[start : start + count]
        if [parameter.shape for parameter in these] == shapes:
            return list(zip(thing, these, strict=True))
    return []


@torch.no_grad()
def _alike(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether these are the parameters' values more or less, and not gradients or moments of theirs."""
    if not pairs or any(c.shape != parameter.shape or c.is_meta for c, parameter in pairs):
        return False
    size = sum(float(norm(parameter)) ** 2 for _, parameter in pairs)
    apart = sum(float(norm(plain(copy).cpu() - plain(p).cpu())) ** 2 for copy, p in pairs)
    return apart < 0.25 * size


def _held_by(holder: Any, *, buffers: bool) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a holder, by their keys."""
    if isinstance(holder, nn.Module):
        yield from entries_of(holder, "_parameters")
        yield from entries_of(holder, "_buffers") if buffers else ()
    elif isinstance(holder, dict):
        yield from ((str(key), v) for key, v in _entries(holder) if issubclass(type(v), Tensor))
    else:
        yield from ((str(place), value) for place, value in enumerate(holder))
