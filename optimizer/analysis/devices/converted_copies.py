"""Batches that are converted on the host and then copied, ``x.float().to(device)``, and could be converted on the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..calls.signatures import call_argument
from ..facts import DataLoader
from ..loading.batches import BatchCopy, BatchTrace, Place
from ..program.syntax import Module
from ..values.resolver import Resolver

_CONVERSIONS = frozenset("float double half bfloat16 long int short bool".split())
"""Methods that round, or cut off, in the same way on every device."""
_TYPES = frozenset(
    f"torch.{name}"
    for name in (
        "float32 float float64 double float16 half bfloat16 int64 long int32 int int16 short bool"
    ).split()
)
_VIEWS = frozenset("view reshape flatten squeeze unsqueeze permute transpose t detach".split())


@dataclass(frozen=True)
class ConvertedCopy:
    """``copy`` with what lies between the batch and it put behind it; ``code`` is what it reads then."""

    copy: BatchCopy
    code: str


def find_converted_copies(
    resolver: Resolver, copies: tuple[BatchCopy, ...], loaders: tuple[DataLoader, ...]
) -> dict[BatchCopy, ConvertedCopy]:
    """Those of ``copies`` that copy a batch that was only converted.

    None where the device may be Apple's (``"mps"``), which refuses the float64 that ``.float()`` keeps from it.
    """
    if _speaks_of_mps(resolver):
        return {}
    trace = BatchTrace(resolver, loaders)
    found: dict[BatchCopy, ConvertedCopy] = {}
    for copy in copies:
        if copy.method == "type" or copy.copies_loaded_memory:
            continue
        for batch, is_converted in _receivers(resolver, copy.source, copy.module):
            parts = trace.parts(batch, copy.module)
            if is_converted and all(p is not None and p.place is Place.LOADED for p in parts):
                code = _moved_behind(copy, batch)
                if code is not None:
                    moved = replace(copy, source=batch, parts=parts)
                    found[copy] = ConvertedCopy(moved, code)
                break
    return found


def _speaks_of_mps(resolver: Resolver) -> bool:
    return any(
        isinstance(node.value, str) and node.value.startswith("mps")
        for module in resolver.project.modules
        if "mps" in module.source.text
        for node in module.nodes_of(ast.Constant)
    )


def _receivers(
    resolver: Resolver, source: ast.expr, module: Module
) -> Iterator[tuple[ast.expr, bool]]:
    """What the conversions and views that ``source`` ends with are methods of, and whether a conversion is among them."""
    is_converted = False
    while isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
        method = source.func.attr
        converts = _converts(resolver, source, method, module)
        if not converts and method not in _VIEWS:
            return
        source, is_converted = source.func.value, is_converted or converts
        yield source, is_converted


def _converts(resolver: Resolver, call: ast.Call, method: str, module: Module) -> bool:
    if method in _CONVERSIONS:
        return not call.args and not call.keywords
    if method not in {"to", "type"} or len(call.args) + len(call.keywords) != 1:
        return False
    wanted = call_argument(call, "dtype", 0)
    names = resolver.names(wanted, module) if wanted is not None else frozenset[str]()
    return bool(names) and names <= _TYPES


def _moved_behind(copy: BatchCopy, batch: ast.expr) -> str | None:
    """The copy of ``batch``, followed by what came before; None where it does not stand in one line."""
    module = copy.module
    whole, converted, code = (module.code(n) for n in (copy.node, copy.source, batch))
    if "\n" in whole or not whole.startswith(converted) or not converted.startswith(code):
        return None
    moves, conversions = whole[len(converted) :], converted[len(code) :]
    if not moves.endswith(")") or not (moves + conversions).startswith("."):
        return None
    separator = ", " if copy.node.args or copy.node.keywords else ""
    return f"{code}{moves[:-1]}{separator}non_blocking=True){conversions}"
