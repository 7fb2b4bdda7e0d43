"""What code runs when a piece of code runs: its own nodes and those of the first-party functions it calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

from ..networks.models import is_module_class
from ..program.syntax import FunctionNode, Module, last_identifier
from ..program.trees import child_nodes
from ..values.composition import call_arguments
from ..values.resolver import Resolver
from ..values.values import Class, External, Function, Made

_LEXICAL = "_torchopt_lexical"
_RUN_ARGUMENTS = frozenset(
    {
        "builtins.map",
        "builtins.filter",
        "builtins.sorted",
        "builtins.min",
        "builtins.max",
        "functools.reduce",
        "itertools.starmap",
        "torch.utils.checkpoint.checkpoint",
    }
)
"""Library functions that run the functions they are given."""
_COMMAND_LINES = re.compile(r"\b(click|typer|sacred|cyclopts)\b")
_COMMANDS = frozenset({"command", "main", "automain", "group", "callback", "default"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


Called: TypeAlias = tuple[FunctionNode | ast.Lambda, Module]
"""A function with the module it stands in."""


class Reached(NamedTuple):
    """A node that runs, the module it stands in, and whether it stands in the code asked about itself.

    A tuple, since one is made for every node: a frozen dataclass takes three times as long to make.
    """

    node: ast.AST
    module: Module
    direct: bool


def lexical_nodes(roots: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of ``roots`` that run with them: bodies of functions and classes defined inside do not."""
    for root in roots:
        yield root
        yield from _lexical_nodes_below(root)


def _lexical_nodes_below(root: ast.AST) -> Sequence[ast.AST]:
    """Remembered on ``root``, as the children of nodes are; without ``root``, a cycle only the collector would free."""
    known: Sequence[ast.AST] | None = root.__dict__.get(_LEXICAL)
    if known is not None:
        return known
    found: list[ast.AST] = []
    pending = [] if isinstance(root, _DEFINITIONS) else [*child_nodes(root)[::-1]]
    while pending:
        node = pending.pop()
        found.append(node)
        if not isinstance(node, _DEFINITIONS):
            pending += child_nodes(node)[::-1]
    root.__dict__[_LEXICAL] = found
    return found


def reached_nodes(
    resolver: Resolver, roots: Iterable[ast.AST], module: Module, *, into_forward: bool = False
) -> Iterator[Reached]:
    """Every node that runs when ``roots`` run, following calls to first-party functions, each function once.

    Functions handed to ``.step(...)`` (closures), to ``map`` and its like count as called. A model's ``forward`` is followed only when asked,
    or where it is a training step itself, as that of a meta-learner or of a GAN with two updates.
    """
    seen: set[FunctionNode | ast.Lambda] = set()
    pending: list[tuple[list[ast.AST], Module, bool]] = [(list(roots), module, True)]
    while pending:
        nodes, current, direct = pending.pop()
        for node in lexical_nodes(nodes):
            yield Reached(node, current, direct)
            if not isinstance(node, ast.Call):
                continue
            for function, owner in called(resolver, node, current):
                if function in seen or (
                    not into_forward and _is_forward(resolver, function, owner)
                ):
                    continue
                seen.add(function)
                body = function.body if isinstance(function.body, list) else [function.body]
                pending.append((list(body), owner, False))


def _is_forward(resolver: Resolver, function: FunctionNode | ast.Lambda, module: Module) -> bool:
    """Whether ``function`` is the ``forward`` of a network, not of some other object."""
    cls = module.parents.get(function)
    return (
        getattr(function, "name", "") == "forward"
        and isinstance(cls, ast.ClassDef)
        and is_module_class(resolver, Class(cls, module))
        and not _is_training_step(function)
    )


def _is_training_step(function: FunctionNode | ast.Lambda) -> bool:
    """Whether ``function`` itself backpropagates for an update, its own or its caller's: not to read gradients itself."""
    body = function.body if isinstance(function.body, list) else [function.body]
    attributes = {node.attr for node in lexical_nodes(body) if isinstance(node, ast.Attribute)}
    return "backward" in attributes and ("step" in attributes or "grad" not in attributes)


def called(resolver: Resolver, call: ast.Call, module: Module) -> Sequence[Called]:
    """The first-party functions that run when ``call`` does, those among the functions handed to it included."""
    known = resolver.called.get(call)
    if known is None:
        known = tuple(_called(resolver, call, module))
        if not resolver.is_tracing:  # Within a trace, cycles may have been cut.
            resolver.called[call] = known
    return known


def _called(resolver: Resolver, call: ast.Call, module: Module) -> Iterator[Called]:
    for callee in resolver.callees(call, module):
        yield callee.node, callee.module
    pending: list[tuple[ast.expr, Module]] = []
    for value in resolver.values(call.func, module):
        if isinstance(value, Made) and value.maker == External("functools.partial"):
            pending += [(argument, value.module) for argument in value.call.args[:1]]
        elif isinstance(value, External) and value.name in _RUN_ARGUMENTS:
            pending += [(argument, module) for argument in call_arguments(call)]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "step":
        pending += [(argument, module) for argument in call_arguments(call)]
    for argument, owner in pending:
        for value in resolver.values(argument, owner):
            if isinstance(value, Function):
                yield value.node, value.module


def functions_run(resolver: Resolver, module: Module) -> frozenset[FunctionNode | ast.Lambda]:
    """The first-party functions that run, as far as can be seen, when ``module`` runs as a script.

    A function that is only named (``mp.spawn(main)``, ``partial(train, ..)``) is taken to be called by whoever gets it, and a command of
    the command line (``@click.command()``) by who starts it.
    """
    commands = [s for s in module.tree.body if _is_command(s, module)]
    found: set[FunctionNode | ast.Lambda] = set(commands)
    pending: list[tuple[list[ast.AST], Module]] = [(list(module.tree.body), module)]
    for command in commands:
        pending.append((list(command.body), module))
    while pending:
        nodes, current = pending.pop()
        for node in lexical_nodes(nodes):
            for function, owner in _mentioned(resolver, node, current):
                if function not in found:
                    found.add(function)
                    body = function.body if isinstance(function.body, list) else [function.body]
                    pending.append((list(body), owner))
    return frozenset(found)


def _is_command(statement: ast.stmt, module: Module) -> TypeGuard[ast.FunctionDef]:
    """Whether ``statement`` is a function that a library of command lines calls: ``@cli.command()``, ``@ex.automain``."""
    if not isinstance(statement, ast.FunctionDef) or module.search(_COMMAND_LINES) is None:
        return False
    decorators = (d.func if isinstance(d, ast.Call) else d for d in statement.decorator_list)
    return any(last_identifier(decorator) in _COMMANDS for decorator in decorators)


def _mentioned(resolver: Resolver, node: ast.AST, module: Module) -> Iterator[Called]:
    if isinstance(node, ast.Call):
        yield from called(resolver, node, module)
    elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
        for value in resolver.values(node, module):
            if isinstance(value, Function):
                yield value.node, value.module


def never_runs(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` stands where the script does not get in an imported file.

    That is below the file's own main guard, or in a function or class that no code refers to that does run.
    """
    if module is resolver.project.entry:
        return False
    return resolver.leftovers.hold(node, module) or resolver.started.leaves_out_code(node, module)
