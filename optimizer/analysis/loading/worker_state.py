"""What of a dataset or collate function does not survive in a worker process, or is lost when it ends.

A worker gets a copy of the dataset. What an item stores there never comes back, an open file would be shared between
processes, a random generator would draw the same numbers in every worker, and CUDA cannot be used in a forked process
(https://docs.pytorch.org/docs/stable/notes/multiprocessing.html).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ..calls.reach import Reached
from ..calls.signatures import call_argument
from ..devices.placement import on_gpu, puts_on_gpu
from ..facts import Fact, excerpt
from ..program.scopes import Binding, Iterated
from ..program.syntax import FunctionNode, Module
from ..values.resolver import Resolver
from ..values.values import SLICE, Element, External, Instance, Made, Unknown, Value
from ..values.values import Attribute as AttributeValue
from .datasets import Dataset, is_iterable
from .held_objects import Holding, holding_of
from .item_state import stored_changes


class Hazard(Enum):
    """Why code cannot run in a worker process, or why its result would differ there.

    ``STATE``: it stores something. ``HELD``: it uses something that must not be copied. ``CUDA``: it puts tensors on a
    GPU. ``STREAM``: every worker would yield the whole stream. ``UNSEEN``: not all of it can be seen.
    """

    STATE = "state"
    HELD = "held"
    CUDA = "cuda"
    STREAM = "stream"
    UNSEEN = "unseen"


@dataclass(frozen=True, eq=False)
class WorkerObstacle(Fact):
    """``node`` is where the hazard shows; ``message`` completes "not moved to workers: ..."."""

    hazard: Hazard
    message: str


def dataset_obstacles(resolver: Resolver, dataset: Dataset) -> Iterator[WorkerObstacle]:
    """What keeps the items of ``dataset`` from being made in worker processes."""
    yield from code_obstacles(resolver, dataset.item_code)
    if isinstance(dataset.node, ast.Call):
        for argument in [*dataset.node.args, *(k.value for k in dataset.node.keywords)]:
            call = on_gpu(resolver, argument, dataset.module)
            if call is not None:
                # Seen where it is given when it is made in another file.
                yield _cuda(dataset.module, call if call in dataset.module.parents else argument)
                break
        else:
            yield from _kept_on_gpu(resolver, dataset)
    if is_iterable(resolver, dataset) and not _asks_for_its_share(resolver, dataset.item_code):
        message = (
            f"{dataset.name} is an IterableDataset that does not ask get_worker_info() for its share; "
            "every worker would yield all of it"
        )
        yield WorkerObstacle(dataset.module, dataset.node, Hazard.STREAM, message)


def given_on_gpu(resolver: Resolver, dataset: ast.expr, module: Module) -> Iterator[WorkerObstacle]:
    """That ``dataset`` is itself a tensor on a GPU."""
    call = on_gpu(resolver, dataset, module)
    if call is not None:
        yield _cuda(module, call if call in module.parents else dataset)


def code_obstacles(resolver: Resolver, code: tuple[Reached, ...]) -> Iterator[WorkerObstacle]:
    """What keeps ``code`` from running in worker processes."""
    for change in stored_changes(resolver, code):
        yield WorkerObstacle(change.module, change.node, Hazard.STATE, change.message)
    yield from _held(resolver, code)
    yield from _moving_globals(code)
    for reached in code:
        node = reached.node
        if (
            isinstance(node, ast.Call)
            and not _follows_a_tensor(resolver, node, reached.module)
            and puts_on_gpu(resolver, node, reached.module)
        ):
            yield _cuda(reached.module, node)


def _follows_a_tensor(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` puts its result where a variable of the function has a tensor, which is told where that was made.

    The device that an object of the script's or its settings keep (``self.device``) is no tensor's.
    """
    device = call_argument(call, "device", 0 if getattr(call.func, "attr", "") == "to" else None)
    match device:
        case ast.Attribute(value=ast.Name() as tensor, attr="device"):
            found = module.scope(tensor).lookup(tensor.id)
            values = resolver.values(device, module)
            return (
                found is not None
                and found[0].node is module.function(call)
                and all(isinstance(value, AttributeValue | Unknown) for value in values)
            )
        case _:
            return False


def _moving_globals(code: tuple[Reached, ...]) -> Iterator[WorkerObstacle]:
    """Globals the code reads that a loop or a function sets: a worker sees the value of the moment it started."""
    told: set[str] = set()
    for reached in code:
        node, module = reached.node, reached.module
        if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)) or node.id in told:
            continue
        found = module.scope(node).lookup(node.id)
        if found is None or not isinstance(found[0].node, ast.Module):
            continue
        if any(_runs_again(binding, module) for binding in found[1]):
            told.add(node.id)
            message = f"it reads the global `{node.id}`, which the script goes on changing"
            yield WorkerObstacle(module, node, Hazard.STATE, message)


def _runs_again(binding: Binding, module: Module) -> bool:
    """Whether a global gets its value in a loop, as the loop's variable, or in a function."""
    in_loop = isinstance(binding.source, Iterated) or module.loops(binding.node)
    return bool(in_loop) or module.function(binding.node) is not None


def _kept_on_gpu(resolver: Resolver, dataset: Dataset) -> Iterator[WorkerObstacle]:
    """Where the items of ``dataset`` read tensors that its objects keep on a GPU: ``self.images[i]``."""
    for reached in dataset.item_code:
        node = reached.node
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        owners = resolver.values(node.value, reached.module)
        if any(isinstance(owner, Instance) for owner in owners) and (
            on_gpu(resolver, node, reached.module) is not None
        ):
            yield _cuda(reached.module, node)


def _cuda(module: Module, call: ast.expr) -> WorkerObstacle:
    message = f"`{excerpt(module, call)}` uses the GPU, which a worker process must not"
    return WorkerObstacle(module, call, Hazard.CUDA, message)


def _asks_for_its_share(resolver: Resolver, code: tuple[Reached, ...]) -> bool:
    asks = any(
        isinstance(reached.node, ast.Call)
        and "torch.utils.data.get_worker_info" in resolver.names(reached.node.func, reached.module)
        for reached in code
    )
    return asks and any(
        isinstance(reached.node, ast.Attribute) and reached.node.attr in {"id", "num_workers"}
        for reached in code
    )


def _held(resolver: Resolver, code: tuple[Reached, ...]) -> Iterator[WorkerObstacle]:
    """Objects the code uses that were made before and must not be used by several processes."""
    own = {reached.node for reached in code}
    functions = {reached.module.function(reached.node) for reached in code}
    told: set[object] = set()
    for reached in code:
        node, module = reached.node, reached.module
        if not (isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)):
            continue
        if not _is_from_outside(resolver, node, module, functions):
            continue
        for value in resolver.values(node, module):
            found = _hazard_of(value, own, module.code(node))
            key = ast.unparse(node) if isinstance(value, Unknown) else value
            if found is not None and key not in told:
                told.add(key)
                yield WorkerObstacle(module, node, *found)


_REASONS = {
    Holding.HANDLE: (
        Hazard.HELD,
        "`{code}` is opened before the workers start (`{maker}`); processes must not share it",
    ),
    Holding.GENERATOR: (
        Hazard.HELD,
        "`{code}` is a random generator; every worker would draw the same from its copy",
    ),
    Holding.LOCK: (
        Hazard.HELD,
        "`{code}` belongs to this process (`{maker}`) and cannot go to a worker",
    ),
    Holding.ITERATOR: (
        Hazard.HELD,
        "`{code}` is an iterator; every worker would run through a copy of its own",
    ),
    Holding.UNKNOWN: (
        Hazard.UNSEEN,
        "`{code}` comes from `{maker}`, which may not work in a worker process",
    ),
}


def _hazard_of(value: Value, own: set[ast.AST], code: str) -> tuple[Hazard, str] | None:
    """What is wrong with using ``value`` in a worker, when ``code`` names it; None when nothing is."""
    while isinstance(value, Element | AttributeValue):
        if isinstance(value, Element) and _is_read_out(value):
            return None
        value = value.of
    if isinstance(value, Unknown):
        return Hazard.UNSEEN, f"what `{code}` is cannot be traced"
    if not isinstance(value, Made) or value.call in own or not isinstance(value.maker, External):
        return None
    reason = _REASONS.get(holding_of(value.maker.name))
    return (
        None if reason is None else (reason[0], reason[1].format(code=code, maker=value.maker.name))
    )


def _is_read_out(element: Element) -> bool:
    """Whether an element of an open HDF5 file has been read into memory: ``h5py.File(p)["x"][:]``."""
    return len(element.path) > 1 and element.path[-1] in {"each", SLICE}


def _is_from_outside(
    resolver: Resolver,
    node: ast.Name | ast.Attribute,
    module: Module,
    functions: set[FunctionNode | None],
) -> bool:
    """Whether ``node`` names an attribute of ``self`` or something defined outside the functions that run."""
    if isinstance(node, ast.Attribute):
        return any(isinstance(v, Instance) for v in resolver.values(node.value, module))
    found = module.scope(node).lookup(node.id)
    if found is None:
        return False
    owner = found[0].node
    if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
        return owner not in functions
    # Lambdas and comprehensions bind their names while they run.
    return isinstance(owner, ast.Module | ast.ClassDef)
