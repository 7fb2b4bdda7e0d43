"""What a framework wraps: ``model, optimizer, loader = accelerator.prepare(model, optimizer, loader)``.

Accelerate and Lightning Fabric give back networks that run the ones they are given, and loaders with the settings of theirs, workers and
pinned memory included, whose batches they copy to the device
(https://huggingface.co/docs/accelerate/concept_guides/internal_mechanism,
https://lightning.ai/docs/fabric/stable/api/fabric_methods.html).
"""

from __future__ import annotations

import ast

from ..facts import DataLoader
from ..loading.loaders import loaders_in
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Element, External, Made, Value

_ACCELERATE, _FABRIC = ("accelerate.",), ("lightning.", "lightning_fabric.")
_WRAPS_LOADERS = {
    "prepare": _ACCELERATE,
    "prepare_data_loader": _ACCELERATE,
    "setup_dataloaders": _FABRIC,
}
_WRAPS = {
    **_WRAPS_LOADERS,
    "prepare_model": _ACCELERATE,
    "setup": _FABRIC,
    "setup_module": _FABRIC,
}
"""The methods that wrap what they are given, in the order in which they are given it, and whose they are."""
_PLACES = frozenset({"device_placement", "move_to_device"})
"""Arguments that may keep batches on the host."""


def wrapped_by_framework(value: Value) -> tuple[ast.expr, Module] | None:
    """The argument of ``accelerator.prepare(..)`` that comes back as ``value``; None where it is something else."""
    match value:
        case Element(of=Made() as made, path=(int() as position,)) if position >= 0:
            pass
        case Made(call=ast.Call(args=[_])) as made:
            position = 0
        case _:
            return None
    given = made.call.args[: position + 1]
    is_known = len(given) > position and not any(isinstance(a, ast.Starred) for a in given)
    return (given[position], made.module) if is_known and _is_made_by(made, _WRAPS) else None


def _is_made_by(made: Made, methods: dict[str, tuple[str, ...]]) -> bool:
    name = made.maker.name if isinstance(made.maker, External) else ""
    packages = methods.get(name.rpartition(".")[2])
    return packages is not None and name.startswith(packages)


def wrapper_of_loader(resolver: Resolver, loader: DataLoader) -> str | None:
    """The framework that wraps ``loader`` and copies its batches to the device that it chose."""
    for module in resolver.project.modules:
        for call in module.calls:
            if not (isinstance(call.func, ast.Attribute) and call.func.attr in _WRAPS_LOADERS):
                continue
            values = resolver.values(call, module)
            if not any(isinstance(v, Made) and _is_made_by(v, _WRAPS_LOADERS) for v in values):
                continue
            if any(loaders_in((loader,), resolver.values(given, module)) for given in call.args):
                is_fabric = _WRAPS_LOADERS[call.func.attr] is _FABRIC
                kept = _keeps_on_host(resolver, call, call.func.value, module)
                return None if kept else "Fabric" if is_fabric else "Accelerate"
    return None


def _keeps_on_host(resolver: Resolver, call: ast.Call, owner: ast.expr, module: Module) -> bool:
    """Whether the framework ``owner``, or its method in ``call``, may be told to leave batches where they are."""
    calls = [call]
    for value in resolver.values(owner, module):
        if not isinstance(value, Made):
            return True
        calls.append(value.call)
    return any(k.arg is None or k.arg in _PLACES for each in calls for k in each.keywords)
