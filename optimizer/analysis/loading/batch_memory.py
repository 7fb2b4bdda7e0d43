"""Whether a loader pins the memory of its batches, whether it can, and who writes to it afterwards."""

from __future__ import annotations

import ast

from ..calls.reach import Reached
from ..calls.signatures import call_argument
from ..devices.placement import default_device_call, move_target, on_gpu
from ..facts import DataLoader, DeviceKind, Fact
from ..precision.precision import LIGHTNING
from ..program.classes import class_attribute
from ..program.syntax import Module
from ..program.trees import walk
from ..script import TrainingScript
from ..values.resolver import Resolver
from ..values.values import Class, External, Function, Literal, Made, Value, union
from .batch_writes import BatchWrite
from .batches import BatchCopy, BatchPart, BatchTrace, Place
from .datasets import DatasetKind
from .item_cost import only_indexes
from .worker_state import Hazard
from .workers import worker_code


def pins_memory(resolver: Resolver, loader: DataLoader) -> bool:
    """Whether the batches of ``loader`` are pinned, at least where there is a GPU."""
    argument = loader.arguments.get("pin_memory")
    if argument is None:
        return False
    if _is_never_true(resolver, argument.value, argument.module):
        return False
    values = resolver.values(argument.value, argument.module)
    return not all(isinstance(v, Literal) and not v.value for v in values)


def _is_never_true(resolver: Resolver, condition: ast.expr, module: Module) -> bool:
    """Whether ``condition`` compares a ``torch.device`` with a text, as in ``device == "cuda"``, which are never equal."""
    match condition:
        case ast.IfExp(test, ast.Constant(True), ast.Constant(False)):
            return _is_never_true(resolver, test, module)
        case ast.Compare(left, [ast.Eq()], [right]):
            sides = [resolver.values(side, module) for side in (left, right)]
        case _:
            return False
    return any(
        all(_is_device(value) for value in one)
        and all(isinstance(value, Literal) and isinstance(value.value, str) for value in other)
        for one, other in (sides, sides[::-1])
        if one and other
    )


def _is_device(value: Value) -> bool:
    return isinstance(value, Made) and value.maker == External("torch.device")


def says_no_pinning(loader: DataLoader) -> bool:
    """Whether ``pin_memory`` is left out, or written as False."""
    argument = loader.arguments.get("pin_memory")
    return argument is None or (
        isinstance(argument.value, ast.Constant) and argument.value.value is False
    )


def pinning_refused(script: TrainingScript, loader: DataLoader) -> str | None:
    """Why pinning the batches of ``loader`` would fail or bring nothing; None when it serves its copies."""
    for module in script.modules:
        call = default_device_call(script.resolver, module)
        if call is not None:
            where = f"({module.place(call)})"
            return f"new tensors are made on the GPU by default {where}, and only host memory can be pinned"
    work = worker_code(script, loader)
    for obstacle in work.obstacles:
        if obstacle.hazard is Hazard.CUDA:
            where = f"({obstacle.place})"
            return (
                f"its batches may be on the GPU already {where}, and only host memory can be pinned"
            )
    for dataset in work.datasets:
        if dataset.kind is DatasetKind.UNKNOWN:
            return f"what {dataset.name} is cannot be traced"
    for reached in work.code:
        if _makes_sparse(script.resolver, reached):
            where = f"({reached.module.place(reached.node)})"
            return f"its batches are sparse tensors {where}, which not every version of PyTorch can pin"
    batch = _unpinnable_batch(script.resolver, loader)
    if batch is not None:
        return f"its batches are `{batch}` objects, which have no pin_memory() method"
    return _copies_refused(script, loader)


def _makes_sparse(resolver: Resolver, reached: Reached) -> bool:
    node = reached.node
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr.startswith("to_sparse"):
        return True
    return any(n.startswith("torch.sparse") for n in resolver.names(node.func, reached.module))


def _copies_refused(script: TrainingScript, loader: DataLoader) -> str | None:
    framework = script.copying_frameworks.get(loader)
    hook = script.trainer_runs.batch_hook
    if framework == LIGHTNING and hook is not None:
        return f"`{hook.node.name}` ({hook.place}) may change its batches before they are copied"
    if framework is not None:
        return _looked_up(script, loader)
    derived: BatchCopy | None = None
    for copy in script.batch_copies:
        converted = script.converted_copies.get(copy)
        parts = converted.copy.parts if converted is not None else copy.parts
        if BatchPart(loader, Place.LOADED) in parts:
            return None
        if BatchPart(loader, Place.DERIVED) in copy.parts:
            derived = copy
    if _is_written_to_gpu(script, loader):
        return None
    if derived is not None:
        where = f"({derived.place})"
        return f"what is copied to the GPU is not the batch itself but computed from it {where}"
    unknown = _moved_to(script, loader)
    if unknown is not None:
        return f"its batches go to `{unknown}`, which could not be traced to a device"
    return "no copy of its batches to a GPU was found"


def _moved_to(script: TrainingScript, loader: DataLoader) -> str | None:
    """The code of what a batch of ``loader`` is moved to: ``x.to(self.device)``, of a class that nothing in sight makes."""
    trace = BatchTrace(script.resolver, script.loaders)
    for module in script.modules:
        for call in module.calls:
            device = call_argument(call, "device", 0)
            if (
                isinstance(call.func, ast.Attribute)
                and device is not None
                and move_target(script.resolver, call, module) is DeviceKind.UNKNOWN
                and BatchPart(loader, Place.LOADED) in trace.parts(call.func.value, module)
            ):
                return module.code(device)
    return None


def _is_written_to_gpu(script: TrainingScript, loader: DataLoader) -> bool:
    """Whether a batch of ``loader`` is copied into a tensor that is on the GPU already: ``inputs.copy_(images)``."""
    trace = BatchTrace(script.resolver, script.loaders)
    for module in script.modules:
        for call in module.calls:
            match call:
                case ast.Call(func=ast.Attribute(target, "copy_"), args=[batch, *_]):
                    is_batch = BatchPart(loader, Place.LOADED) in trace.parts(batch, module)
                    if is_batch and on_gpu(script.resolver, target, module) is not None:
                        return True
                case _:
                    pass
    return False


def _looked_up(script: TrainingScript, loader: DataLoader) -> str | None:
    """That the batches of ``loader`` may be on the GPU: a framework copies whatever there is, wherever it lies."""
    for dataset in worker_code(script, loader).datasets:
        if only_indexes(script.resolver, dataset):
            return f"{dataset.name}: items are only looked up in memory, which may be the GPU's"
    return None


def _unpinnable_batch(resolver: Resolver, loader: DataLoader) -> str | None:
    """The class of the project that ``collate_fn`` returns, when ``pin_memory`` would leave its objects as they are."""
    argument = loader.arguments.get("collate_fn")
    if argument is None:
        return None
    for value in resolver.values(argument.value, argument.module):
        if isinstance(value, Function) and not isinstance(value.node, ast.Lambda):
            returns = [n.value for n in walk(value.node) if isinstance(n, ast.Return) and n.value]
            for batch in union(resolver.values(returned, value.module) for returned in returns):
                cls = batch.maker if isinstance(batch, Made) else None
                if isinstance(cls, Class) and not _is_pinnable(resolver, cls):
                    return cls.node.name
    return None


def _is_pinnable(resolver: Resolver, cls: Class) -> bool:
    containers = {"typing.NamedTuple", "builtins.dict", "builtins.list", "builtins.tuple"}
    bases = resolver.base_names(cls)
    return bool(class_attribute(resolver, cls, "pin_memory") or bases & containers)


def host_write_after(script: TrainingScript, copy: BatchCopy) -> Fact | None:
    """A statement that may write to the copied memory before the copy is done; None when there is none.

    Reading it is no problem: the copy only reads, too.
    """
    trace = BatchTrace(script.resolver, script.loaders, after=copy)
    for write in script.batch_writes:
        if _replaces_item(script, write, copy):
            continue
        shared = trace.parts(write.target, write.module) & copy.parts
        if any(part is not None for part in shared) and _may_follow(write, copy):
            return write
    return None


def _replaces_item(script: TrainingScript, write: BatchWrite, copy: BatchCopy) -> bool:
    """Whether it puts another tensor into a container: ``batch["x"] = ..``, ``batch[key] = batch[key].to(d)``."""
    item = write.node
    if not isinstance(item, ast.Subscript):
        return False
    if isinstance(item.slice, ast.Constant) and isinstance(item.slice.value, str):
        return True
    if _is_key_of(item, write.module):
        return True
    statement = write.module.statement(item)
    if not isinstance(statement, ast.Assign):
        return False
    # What takes a copy of its own item is a list: a tensor on the host would have to bring it back.
    takes_its_own = any(
        statement.value is other.node and ast.unparse(item) == ast.unparse(other.source)
        for other in script.batch_copies
    )
    return takes_its_own or statement.value is copy.node


def _is_key_of(item: ast.Subscript, module: Module) -> bool:
    """Whether a loop over a dictionary sets its own items: ``for key, value in batch.items(): batch[key] = ..``."""
    for loop in module.ancestors(item):
        match loop:
            case ast.For(
                target=ast.Name(key) | ast.Tuple([ast.Name(key), _]),
                iter=ast.Call(ast.Attribute(items, "items" | "keys")),
            ):
                if ast.unparse(item.slice) == key and ast.unparse(items) == ast.unparse(item.value):
                    return True
            case _:
                pass
    return False


def _may_follow(write: BatchWrite, copy: BatchCopy) -> bool:
    """Whether it may run after the copy of a batch: it stands below, in another function, or in an inner loop."""
    if write.module is not copy.module or write.function is not copy.function:
        return True
    if write.span > copy.span:
        return True
    around_copy = copy.module.loops(copy.node)
    # The innermost loop of the copy starts with a new batch only if it is the one that goes over the loader.
    shared = [loop for loop in write.module.loops(write.node) if loop in around_copy]
    return bool(shared) and isinstance(shared[0], ast.While)
