"""What the parameters of a function get that a process or thread runs: ``mp.spawn(main, args=(world_size,))``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..calls.signatures import call_argument
from ..program.parameters import positional_parameters
from ..program.syntax import FunctionNode, Module
from ..values.unpacking import written_part
from ..values.values import External, Function, Made, Unknown, Value

if TYPE_CHECKING:
    from ..program.project import Project
    from ..values.resolver import Resolver

RANK = External("torch.multiprocessing.spawn.rank")
"""Stands for the process index that ``torch.multiprocessing.spawn`` passes first."""
_STARTERS = {
    "spawn": ("fn", 0),
    "start_processes": ("fn", 0),
    "Process": ("target", 1),
    "Thread": ("target", 1),
}
_ARGUMENTS_POSITION = {"spawn": 1, "start_processes": 1, "Process": 3, "Thread": 3}


def spawned_argument(resolver: Resolver, function: FunctionNode, name: str) -> frozenset[Value]:
    """What parameter ``name`` of ``function`` gets where a process is started with it; empty when none is."""
    parameters = [parameter.arg for parameter in positional_parameters(function)]
    if name not in parameters:
        return frozenset()
    found: set[Value] = set()
    for call, module, starter in resolver.process_starts:
        if _starts(resolver, call, module, starter, function):
            index = parameters.index(name) - (starter in {"spawn", "start_processes"})
            found |= _argument(resolver, call, module, starter, index)
    return frozenset(found)


def process_starts(project: Project) -> list[tuple[ast.Call, Module, str]]:
    """The calls that may start a process or thread, and what they are called."""
    return [
        (call, module, starter)
        for module in project.modules
        for starter in _STARTERS
        for call in module.calls_named(starter)
    ]


def _starts(
    resolver: Resolver, call: ast.Call, module: Module, starter: str, function: FunctionNode
) -> bool:
    target = call_argument(call, *_STARTERS[starter])
    if target is None:
        return False
    return any(
        isinstance(value, Function) and value.node is function
        for value in resolver.values(target, module)
    )


def _argument(
    resolver: Resolver, call: ast.Call, module: Module, starter: str, index: int
) -> frozenset[Value]:
    if index < 0:
        return frozenset([Made(call, module, RANK)])
    arguments = call_argument(call, "args", _ARGUMENTS_POSITION[starter])
    given = written_part(arguments, (index,))
    if given is not None:
        return resolver.values(given, module)
    return frozenset([Unknown("argument of a started process")])
