"""What a worker process needs that is spawned, not forked: it imports the script anew and unpickles the dataset.

Lambdas and functions defined in functions do not pickle; what the script defines under its main guard is not there
(https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ...options import Options
from ..calls.reach import Reached
from ..facts import DataLoader, Fact
from ..program.classes import kept_as, kept_names
from ..program.syntax import Module
from ..values.composition import composed_of
from ..values.global_changes import Setter, global_setters
from ..values.resolver import Resolver
from ..values.values import Class, Function, Made, Value
from .datasets import Dataset

_SET_START_METHOD = frozenset(
    {
        f"{package}.{function}"
        for package in ("multiprocessing", "torch.multiprocessing")
        for function in ("set_start_method", "get_context")
    }
)


def starts_workers_by_fork(resolver: Resolver, loader: DataLoader, options: Options) -> bool:
    """Whether the workers of ``loader`` would be forked: the platform's way, unless the script asks otherwise."""
    asked = _asked_start_method(resolver, loader)
    return options.forks_workers if asked is None else asked == "fork"


def _asked_start_method(resolver: Resolver, loader: DataLoader) -> str | None:
    context = loader.arguments.get("multiprocessing_context")
    if context is not None:
        try:
            return str(resolver.literal(context.value, context.module))
        except LookupError:
            return "spawn"
    for module in resolver.project.modules:
        for call in module.calls:
            if call.args and resolver.names(call.func, module) & _SET_START_METHOD:
                try:
                    return str(resolver.literal(call.args[0], module))
                except LookupError:
                    return "spawn"
    return None


def unpicklable(
    resolver: Resolver, loader: DataLoader, datasets: Iterable[Dataset]
) -> tuple[Fact, str] | None:
    """Something that would have to be sent to a spawned worker and cannot, and why; None when there is nothing."""
    sent: set[Value] = set()
    for keyword in ("dataset", "collate_fn", "worker_init_fn"):
        argument = loader.arguments.get(keyword)
        if argument is not None:
            sent |= resolver.values(argument.value, argument.module)
    for dataset in datasets:
        sent |= _kept_by(resolver, dataset)
    found = (_local_definition(value) for value in composed_of(resolver, sent))
    return next((problem for problem in found if problem is not None), None)


def _kept_by(resolver: Resolver, dataset: Dataset) -> set[Value]:
    """What an instance of the dataset's class keeps in its attributes."""
    kept: set[Value] = set()
    if dataset.cls is not None:
        node, module = dataset.cls.node, dataset.cls.module
        for name in kept_names(resolver, node, module):
            for expression, _, where in kept_as(resolver, node, module, name):
                kept |= resolver.values(expression, where)
    if isinstance(dataset.node, ast.expr):
        kept |= resolver.values(dataset.node, dataset.module)
    return kept


def _local_definition(value: Value) -> tuple[Fact, str] | None:
    """A lambda, or a function or class (or an instance of it) defined inside a function."""
    if isinstance(value, Made) and isinstance(value.maker, Class):
        value = value.maker
    match value:
        case Function(ast.Lambda() as node, module):
            return Fact(module, node), "a lambda does not pickle"
        case Function(ast.FunctionDef() as node, module, False) | Class(node, module):
            if module.function(node) is None:
                return None
            message = f"`{node.name}` is defined inside a function and does not pickle"
            return Fact(module, node), message
        case _:
            return None


def names_set_in(
    resolver: Resolver, statements: Iterable[ast.stmt], code: Iterable[Reached], module: Module
) -> Iterator[tuple[str, ast.AST]]:
    """The globals of ``module`` that ``code`` reads and ``statements`` (of its top level) set or change.

    Yields each name with the node that sets it. A child process that does not run ``statements`` lacks the value.
    """
    guarded = set(statements)
    setters: dict[str, list[Setter]] | None = None
    told: set[str] = set()
    for reached in code:
        node = reached.node
        if reached.module is not module or not isinstance(node, ast.Name) or node.id in told:
            continue
        found = module.scope(node).lookup(node.id)
        if found is None or not isinstance(found[0].node, ast.Module):
            continue
        if setters is None:
            setters = global_setters(resolver, module)
        for setter in setters.get(node.id, ()):
            inside = top_level_statement(setter.node, module) in guarded
            if inside and setter.matters_to(node, module):
                told.add(node.id)
                yield node.id, setter.node
                break


def top_level_statement(node: ast.AST, module: Module) -> ast.stmt:
    """The statement of the module's own body that ``node`` stands in; guarded statements count as top level."""
    bodies = [module.tree.body, *(guard.body for guard in module.main_only)]
    current = module.statement(node)
    while not any(current in body for body in bodies):
        current = module.statement(module.parents[current])
    return current
