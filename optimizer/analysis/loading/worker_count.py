"""How many workers a loader asks for, and where its script says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ..calls.printing import is_printed
from ..calls.signatures import default_of, parameter_of
from ..facts import DataLoader, Fact
from ..program.parameters import parameter_names
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Literal, Option

MOST_WORKERS, MOST_BESIDE_A_GPU = 8, 16
"""On a CPU the training needs the cores itself. Beside a GPU they have nothing to do but to make batches; each worker takes memory."""


def most_workers(*, beside_gpu: bool) -> int:
    """How many workers a loader is given at most, where nobody chose."""
    return MOST_BESIDE_A_GPU if beside_gpu else MOST_WORKERS


class CountKind(Enum):
    """``UNSET``: no argument. ``ZERO``: 0 in every case. ``CHOSEN``: something else. ``OPAQUE``: hidden in ``**``."""

    UNSET = "unset"
    ZERO = "zero"
    CHOSEN = "chosen"
    OPAQUE = "opaque"


@dataclass(frozen=True, eq=False)
class Zero(Fact):
    """The expression that says 0. ``holder`` is the variable, parameter or option it is given to.

    ``holder`` is None where the 0 stands in the loader's own call, or in a place that is not followed. ``option`` is the
    ``add_argument`` call whose default the 0 is.
    """

    node: ast.expr
    holder: str | None
    option: ast.Call | None = None


@dataclass(frozen=True, eq=False)
class WorkerCount:
    """``zero`` is set for ``CountKind.ZERO``; ``written`` is the number that stands among the loader's arguments, where one does."""

    kind: CountKind
    zero: Zero | None = None
    written: int | None = None


def worker_count(resolver: Resolver, loader: DataLoader) -> WorkerCount:
    """How many workers ``loader`` asks for."""
    argument = loader.arguments.get("num_workers")
    if argument is None:
        return WorkerCount(CountKind.UNSET if loader.opaque is None else CountKind.OPAQUE)
    values = list(resolver.values(argument.value, argument.module))
    match values[0] if len(values) == 1 else None:
        case Literal(value, node, module) if _is_zero(value):
            return WorkerCount(CountKind.ZERO, Zero(module, node, _holder(node, module)))
        case Option(name, call, module, ast.Constant(value=value) as node) if _is_zero(value):
            return WorkerCount(CountKind.ZERO, Zero(module, node, name, call))
        case _:
            written = argument.value.value if isinstance(argument.value, ast.Constant) else None
            return WorkerCount(CountKind.CHOSEN, written=written if type(written) is int else None)


def _is_zero(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == 0


def _holder(zero: ast.expr, module: Module) -> str | None:
    """The variable or parameter whose value, or default value, ``zero`` is."""
    parent = module.parents[zero]
    match parent:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)) if not isinstance(
            module.parents[parent], ast.ClassDef
        ):
            return name
        case ast.arguments():
            function = module.parents[parent]
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                defaults = {default_of(function, name): name for name in parameter_names(function)}
                return defaults.get(zero)
            return None
        case _:
            return None


def other_use(resolver: Resolver, zero: Zero, loaders: tuple[DataLoader, ...]) -> Fact | None:
    """A place that reads ``zero`` for something else than a loader's ``num_workers``; None if there is none.

    Printing it does not count, nor does handing it on to a variable, an attribute or a parameter that is read for nothing else. A 0
    that is given to something that is not followed is itself that place.
    """
    counts = [loader.arguments.get("num_workers") for loader in loaders]
    as_count = {count.value for count in counts if count is not None}
    if zero.node in as_count:
        return None
    if zero.holder is None:
        return zero
    holders = [zero.holder]
    for holder in holders:
        for use in _uses(resolver, zero, holder):
            if use.node in as_count or is_printed(resolver, use.node, use.module):
                continue
            handed_to = _handed_to(resolver, use.node, use.module)
            if not handed_to:
                return use
            holders += [name for name in handed_to if name not in holders]
    return None


def _uses(resolver: Resolver, zero: Zero, holder: str) -> Iterator[Fact]:
    """Where variables and attributes that go by ``holder`` are read, and may be ``zero``."""
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Name, ast.Attribute):
            if (
                isinstance(node.ctx, ast.Load)
                and holder == (node.id if isinstance(node, ast.Name) else node.attr)
                and _reads(resolver, node, module, zero)
            ):
                yield Fact(module, node)


def _handed_to(resolver: Resolver, node: ast.AST, module: Module) -> list[str]:
    """The variable, attribute or parameters that get ``node`` as their value; none where it is used in another way."""
    parent = module.parents[node]
    if isinstance(parent, ast.keyword):
        parent = module.parents[parent]
    match parent:
        case (
            ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), value=value)
        ) if value is node:
            return [name]
        case ast.Call() if node is not parent.func:
            assert isinstance(node, ast.expr)
            names = [
                None
                if isinstance(callee.node, ast.Lambda)
                else parameter_of(callee.node, node, parent, callee.bound)
                for callee in resolver.callees(parent, module)
            ]
            known = [name for name in names if name is not None]
            return known if len(known) == len(names) else []
        case _:
            return []


def _reads(resolver: Resolver, node: ast.expr, module: Module, zero: Zero) -> bool:
    for value in resolver.values(node, module):
        if isinstance(value, Literal) and value.node is zero.node:
            return True
        if isinstance(value, Option) and value.call is zero.option:
            return True
    return False
