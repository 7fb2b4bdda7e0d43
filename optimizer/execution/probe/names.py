"""Names of parameters and buffers that stay the same when a model is wrapped or compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside compile's and the parallel wrappers."""
    while (attribute := _WRAPPERS.get(type(module).__name__)) is not None:
        inner = module.__dict__["_modules"].get(attribute)
        if inner is None:
            break
        module = inner
    return module


def class_name(module: nn.Module) -> str:
    """The class of ``module``, wrappers aside; of one that was scripted or traced its own."""
    module = unwrap(module)
    if isinstance(module, torch.jit.ScriptModule):
        return str(module.original_name)
    return type(module).__name__


def name_parameters(
    positions: Mapping[str, Tensor], roots: Sequence[nn.Module]
) -> dict[str, Tensor]:
    """Names for parameters, in the order of ``positions``.

    A name begins with the label of the root module that holds the parameter (:func:`label_roots`). Those of no module
    keep their key in ``positions``.
    """
    names: dict[int, str] = {}
    for root, label in label_roots(positions.values(), roots):
        for name, parameter in entries_of(root, "_parameters"):
            names.setdefault(id(parameter), f"{label}.{name}")
    return {names.get(id(parameter), key): parameter for key, parameter in positions.items()}


def label_roots(
    parameters: Iterable[Tensor], roots: Sequence[nn.Module]
) -> list[tuple[nn.Module, str]]:
    """Those of the ``roots`` that hold ``parameters``, in the order of these, and what to call each.

    Of several that hold the same parameter it is the largest. The label is the class, with ``#2`` for the second root
    of that class.
    """
    homes: dict[int, tuple[tuple[int, str], nn.Module]] = {}
    for root in roots:
        held = [parameter for _, parameter in entries_of(root, "_parameters")]
        rank = (-len(held), class_name(root))
        for parameter in held:
            if id(parameter) not in homes or rank < homes[id(parameter)][0]:
                homes[id(parameter)] = (rank, root)
    labelled: list[tuple[nn.Module, str]] = []
    seen: dict[str, int] = {}
    for root in dict.fromkeys(homes[id(p)][1] for p in parameters if id(p) in homes):
        name = class_name(root)
        seen[name] = seen.get(name, 0) + 1
        labelled.append((root, name if seen[name] == 1 else f"{name}#{seen[name]}"))
    return labelled


def root_modules() -> list[nn.Module]:
    """Every live module that is no other module's child, and no graph of one: those that Dynamo makes hold its parameters before PyTorch 2.5."""
    modules: list[nn.Module] = [
        thing
        for thing in alive(nn.Module)
        if "_modules" in thing.__dict__ and "compile_subgraph_reason" not in thing.__dict__
    ]
    children = {id(child) for module in modules for child in module.__dict__["_modules"].values()}
    return [module for module in modules if id(module) not in children]


def alive(*kinds: type) -> list[Any]:
    """Every live object that is one of ``kinds``, but for those that the garbage collector leaves out (``gc.freeze``).

    By its type() rather than isinstance, which may run a proxy object's code. Each type is asked once, by its id since a metaclass may
    refuse to be hashed: there are some hundred thousand objects, and a profiler that the script has started notes each question.
    """
    things = gc.get_objects()
    types = dict(zip(map(id, map(type, things)), map(type, things), strict=True))
    wanted = {number for number, kind in types.items() if issubclass(kind, kinds)}
    return [*compress(things, map(wanted.__contains__, map(id, map(type, things))))]


def entries_of(module: nn.Module, kind: str, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """The ``_parameters`` or ``_buffers`` of ``module`` with state-dict names free of wrappers' prefixes."""
    module = unwrap(module)
    for name, tensor in module.__dict__[kind].items():
        if tensor is not None:
            yield prefix + name, tensor
    for name, child in module.__dict__["_modules"].items():
        if child is not None:
            yield from entries_of(child, kind, f"{prefix}{name}.")
