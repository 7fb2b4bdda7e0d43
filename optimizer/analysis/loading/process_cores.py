"""Numbers of workers that are counted from a machine's CPU cores, which several processes on it share.

A process that takes a worker per core leaves none to the others: PyTorch's own example divides the number
(https://github.com/pytorch/examples/blob/main/imagenet/main.py, ``args.workers``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...rewriting.edits import FileEdit, InsertAfter
from ..distributed.process_names import Place, ProcessNames
from ..editing.replacing import replacement
from ..facts import DataLoader, Fact
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Display, Made, Option, Value

CPU_COUNTS = frozenset(
    {
        "os.cpu_count",
        "os.process_cpu_count",
        "multiprocessing.cpu_count",
        "torch.multiprocessing.cpu_count",
        "psutil.cpu_count",
    }
)
_COUNTS = CPU_COUNTS | {"os.sched_getaffinity"}


SHARED = "# processes on the same machine share its cores"


@dataclass(frozen=True, eq=False)
class CoreCount(Fact):
    """An expression that is the number of CPU cores: ``os.cpu_count() or 1``. ``name`` is the variable that holds it alone."""

    node: ast.expr
    name: str | None


def core_counts(resolver: Resolver, loaders: Iterable[DataLoader]) -> list[CoreCount]:
    """What the workers of ``loaders`` are counted from, where that is the cores of the machine."""
    found: dict[ast.expr, CoreCount] = {}
    for loader in loaders:
        argument = loader.arguments.get("num_workers")
        if argument is not None:
            for count in _counts_in(resolver, argument.value, argument.module, set()):
                found[count.node] = count
    return [*found.values()]


def shared_core_edits(
    resolver: Resolver, loaders: Iterable[DataLoader], names: ProcessNames
) -> Iterator[FileEdit]:
    """Divide the cores that the workers of ``loaders`` are counted from among the processes of a machine."""
    for count in core_counts(resolver, loaders):
        module = count.module
        processes = names.name(Place.LOCAL_WORLD_SIZE, module)
        if count.name is not None:
            code = f"{SHARED}\n{count.name} = {share(count.name, processes)}"
            statement = module.span(module.statement(count.node))
            yield FileEdit(module.path, InsertAfter(statement, code))
        else:
            code = (
                f"{_operand(count)} // {processes}"
                if _floored(count)
                else share(_operand(count), processes)
            )
            yield replacement(module, count.node, code)


def share(cores: str, processes: str) -> str:
    """The code of what one of ``processes`` gets of ``cores``: at least one, since workers may be kept alive."""
    return f"max(1, {cores} // {processes})"


def _operand(count: CoreCount) -> str:
    code = count.module.code(count.node)
    match count.node:
        case ast.Call() | ast.BinOp(op=ast.FloorDiv()):
            return code
        case _:
            return f"({code})"


def _floored(count: CoreCount) -> bool:
    """Whether the script itself takes care that it is one at least: ``max(1, os.cpu_count() // 2)``."""
    match count.module.parents[count.node]:
        case ast.Call(func=ast.Name(id="max"), args=arguments):
            return any(
                isinstance(a, ast.Constant) and isinstance(a.value, int) and a.value >= 1
                for a in arguments
            )
        case _:
            return False


def _counts_in(
    resolver: Resolver, expression: ast.expr, module: Module, seen: set[ast.expr]
) -> Iterator[CoreCount]:
    if expression in seen:
        return
    seen.add(expression)
    for node in walk(expression):
        if isinstance(node, ast.Call) and resolver.names(node.func, module) & _COUNTS:
            yield _whole(node, module)
        elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            for value in resolver.values(node, module):
                origin = _origin(value)
                if origin is not None:
                    yield from _counts_in(resolver, *origin, seen)


def _origin(value: Value) -> tuple[ast.expr, Module] | None:
    """The expression that ``value`` comes from, where it is computed."""
    match value:
        case Made(call=call, module=module):
            return call, module
        case Display(node=node, module=module):
            return node, module
        case Option(module=module, default=ast.expr() as default):
            return default, module
        case _:
            return None


def _whole(count: ast.Call, module: Module) -> CoreCount:
    """All that is nothing but the number of cores, or a part of it, around ``count``: ``os.cpu_count() or 1``, ``cpu_count() - 1``.

    What is taken from the number once it is divided may leave no worker, which a loader that keeps its workers refuses.
    """
    node: ast.expr = count
    while True:
        match module.parents[node]:
            case ast.Call(func=ast.Name(id="len" | "int")) as around:
                node = around
            case ast.BoolOp(op=ast.Or()) as around:
                node = around
            case ast.BinOp(op=ast.Sub() | ast.FloorDiv(), left=left) as around if left is node:
                node = around
            case ast.BinOp(op=ast.Div(), left=left) as half if left is node:
                match module.parents[half]:
                    case ast.Call(func=ast.Name(id="int" | "round")) as around:
                        node = around
                    case _:
                        return CoreCount(module, node, None)
            case ast.IfExp(test=test) as around if node is not test:
                node = around
            case ast.Assign(targets=[ast.Name(id=name)]):
                return CoreCount(module, node, name)
            case _:
                return CoreCount(module, node, None)
