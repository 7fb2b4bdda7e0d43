"""The functions that a script runs in processes of its own to train: ``mp.spawn(main_worker, nprocs=n)``.

What the starting process sets does not reach them unless they are forked, and then only if it was set before: a spawned process starts
anew (https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import Called, reached_nodes
from ..calls.signatures import call_argument
from ..facts import Fact
from ..program.syntax import FunctionNode, Module
from ..training.loops import backward_calls
from ..values.resolver import Resolver
from ..values.values import Class, Function

_STARTERS = {"spawn": ("fn", 0), "start_processes": ("fn", 0), "Process": ("target", 1)}
_PROCESSES = frozenset({"multiprocessing.Process", "torch.multiprocessing.Process"})


def training_processes(resolver: Resolver) -> tuple[Called, ...]:
    """The functions that processes are started with, and that train."""
    found = {
        function: module
        for function, module in (*_started(resolver), *_run_methods(resolver))
        if isinstance(function, ast.FunctionDef)
        and backward_calls(reached_nodes(resolver, function.body, module))
    }
    return tuple(found.items())


def start_of_several(resolver: Resolver, node: ast.AST) -> Fact | None:
    """The call in a loop that starts processes which each run ``node``: ``for rank in range(n): Process(target=train, args=(rank,))``."""
    for module in resolver.project.modules:
        for call in module.calls_named("Process"):
            if not module.loops(call):
                continue
            for function, where in _targets(resolver, call, "Process", module):
                body = [function.body] if isinstance(function, ast.Lambda) else function.body
                if any(r.node is node for r in reached_nodes(resolver, body, where)):
                    return Fact(module, call)
    return None


def training_function(
    resolver: Resolver, processes: tuple[Called, ...]
) -> tuple[FunctionNode, Module] | None:
    """The outermost function that all training runs in, inside of ``processes``; None where there is no such function.

    A script that also trains in its first process, as with a single GPU, calls the function itself there.
    """
    functions = [(f, m) for f, m in processes if isinstance(f, ast.FunctionDef)]
    started = frozenset(function for function, _ in functions)
    trains = [*_training_functions(resolver)]
    candidates = (*functions, *_callers(resolver, trains))
    once = [c for c in candidates if not _runs_repeatedly(resolver, c[0])]
    return next((c for c in once if _all_run_in(resolver, trains, c[0], started)), None)


def _started(resolver: Resolver) -> Iterator[Called]:
    for module in resolver.project.modules:
        for starter in _STARTERS:
            for call in module.calls_named(starter):
                yield from _targets(resolver, call, starter, module)


def _targets(resolver: Resolver, call: ast.Call, starter: str, module: Module) -> Iterator[Called]:
    """The functions that ``call`` of ``starter`` starts processes with."""
    target = call_argument(call, *_STARTERS[starter])
    for value in resolver.values(target, module) if target is not None else ():
        if isinstance(value, Function):
            yield value.node, value.module


def _run_methods(resolver: Resolver) -> Iterator[Called]:
    """What ``class Worker(mp.Process)`` runs."""
    for module in resolver.project.modules:
        for cls in module.nodes_of(ast.ClassDef):
            if cls.bases and resolver.base_names(Class(cls, module)) & _PROCESSES:
                for method in cls.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "run":
                        yield method, module


def _training_functions(resolver: Resolver) -> Iterator[tuple[FunctionNode | None, Module]]:
    """The functions that gradients are computed in; None for code outside of any."""
    for module in resolver.project.modules:
        for call in module.calls_named("backward"):
            if not module.leaves_out(call):
                function = module.function(call)
                yield (None if isinstance(function, ast.Lambda) else function), module


def _callers(
    resolver: Resolver, trains: list[tuple[FunctionNode | None, Module]]
) -> list[tuple[FunctionNode, Module]]:
    """The functions that lead to ``trains``, the outermost first."""
    found: dict[FunctionNode, Module] = {}
    pending = trains[:]
    while pending:
        function, module = pending.pop(0)
        if function is not None and function not in found:
            found[function] = module
            pending += _around(resolver, function, module)
    return [*found.items()][::-1]


def _around(
    resolver: Resolver, function: FunctionNode, module: Module
) -> Iterator[tuple[FunctionNode | None, Module]]:
    """The functions that call ``function``, or make it, as a closure; None for code outside of any."""
    sites = [(site.call, site.module) for site in resolver.call_sites(function)]
    if not sites and module.function(function) is not None:
        sites = [(function, module)]
    for node, where in sites:
        caller = where.function(node)
        yield (None if isinstance(caller, ast.Lambda) else caller), where


def _runs_repeatedly(resolver: Resolver, function: FunctionNode) -> bool:
    return any(site.module.loops(site.call) for site in resolver.call_sites(function))


def _all_run_in(
    resolver: Resolver,
    trains: list[tuple[FunctionNode | None, Module]],
    function: FunctionNode,
    started: frozenset[FunctionNode],
) -> bool:
    """Whether every way to ``trains`` leads through ``function``."""
    seen: set[FunctionNode] = set()
    pending = trains[:]
    while pending:
        current, module = pending.pop()
        if current is function or current in seen:
            continue
        if current is None or current in started:
            return False
        seen.add(current)
        pending += _around(resolver, current, module)
    return True
