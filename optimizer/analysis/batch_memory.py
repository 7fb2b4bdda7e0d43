"""Whether a loader pins the memory of its batches, whether it can, and who writes to it afterwards."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .batches import BatchCopy, BatchPart, BatchTrace, Place
from .classes import class_attribute
from .composition import composed_of
from .datasets import DatasetKind
from .facts import DataLoader, Fact
from .placement import default_device_call
from .reach import Reached
from .resolver import Resolver
from .script import TrainingScript
from .signatures import call_argument
from .syntax import Module
from .trees import walk
from .values import Class, Function, Literal, Made, union
from .worker_state import Hazard
from .workers import place, worker_code

_WRITES_ARGUMENT = frozenset(
    {"numpy.copyto", "numpy.put", "numpy.random.shuffle", "random.shuffle", "numpy.fill_diagonal"}
)


def pins_memory(resolver: Resolver, loader: DataLoader) -> bool:
    """Whether the batches of ``loader`` are pinned, at least where there is a GPU."""
    argument = loader.arguments.get("pin_memory")
    if argument is None:
        return False
    values = resolver.values(argument.value, argument.module)
    return not all(isinstance(v, Literal) and not v.value for v in values)


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
            where = place(Fact(module, call), loader.path)
            return f"new tensors are made on the GPU by default {where}, and only host memory can be pinned"
    work = worker_code(script, loader)
    for obstacle in work.obstacles:
        if obstacle.hazard is Hazard.CUDA:
            where = place(obstacle, loader.path)
            return f"its batches are on the GPU already {where}, and only host memory can be pinned"
    for dataset in work.datasets:
        if dataset.kind is DatasetKind.UNKNOWN:
            return f"what {dataset.name} is cannot be traced"
    for reached in work.code:
        if _makes_sparse(script.resolver, reached):
            where = place(Fact(reached.module, reached.node), loader.path)
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
    derived: BatchCopy | None = None
    for copy in script.batch_copies:
        if BatchPart(loader, Place.LOADED) in copy.parts:
            return None
        if BatchPart(loader, Place.DERIVED) in copy.parts:
            derived = copy
    if derived is not None:
        where = place(derived, loader.path)
        return f"what is copied to the GPU is not the batch itself but computed from it {where}"
    return "no copy of its batches to a GPU was found"


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
    for module in script.modules:
        for node in module.nodes:
            for target in _written(script.resolver, node, module):
                if _replaces_item(script, node, module, copy):
                    continue
                shared = trace.parts(target, module) & copy.parts
                if any(part is not None for part in shared) and _may_follow(node, module, copy):
                    return Fact(module, node)
    return None


def _written(resolver: Resolver, node: ast.AST, module: Module) -> Iterator[ast.expr]:
    """The tensors that ``node`` writes to in place."""
    match node:
        case ast.Subscript(ctx=ast.Store()):
            yield node.value
        case ast.AugAssign(target=target):
            yield target
        case ast.Call():
            yield from _written_by_call(resolver, node, module)
        case _:
            pass


def _written_by_call(resolver: Resolver, call: ast.Call, module: Module) -> Iterator[ast.expr]:
    out = call_argument(call, "out")
    if out is not None:
        yield out
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place and isinstance(call.func, ast.Attribute):
        yield call.func.value
    names = resolver.names(call.func, module)
    if in_place or names & _WRITES_ARGUMENT or _works_in_place(resolver, call, module):
        yield from call.args[:1]


def _works_in_place(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` may write to its argument: ``relu(x, inplace=True)``, a module that was made so."""
    made = composed_of(resolver, resolver.values(call.func, module))
    calls = [call, *(value.call for value in made if isinstance(value, Made))]
    said = [call_argument(each, "inplace") for each in calls]
    return any(s is not None and not _is_false(s) for s in said)


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _replaces_item(script: TrainingScript, node: ast.AST, module: Module, copy: BatchCopy) -> bool:
    """Whether ``node`` puts another tensor into a container: ``batch["x"] = ..``, ``batch[key] = batch[key].to(d)``."""
    if not isinstance(node, ast.Subscript):
        return False
    if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return True
    statement = module.statement(node)
    if not isinstance(statement, ast.Assign):
        return False
    # What takes a copy of its own item is a list: a tensor on the host would have to bring it back.
    takes_its_own = any(
        statement.value is other.node and ast.unparse(node) == ast.unparse(other.source)
        for other in script.batch_copies
    )
    return takes_its_own or statement.value is copy.node


def _may_follow(node: ast.AST, module: Module, copy: BatchCopy) -> bool:
    """Whether ``node`` may run after the copy of a batch: it stands below, in another function, or in an inner loop."""
    function = module.function(node)
    if module is not copy.module or function is not copy.function:
        return True
    if module.span(node) > copy.span:
        return True
    around_copy = module.loops(copy.node)
    # The innermost loop of the copy starts with a new batch only if it is the one that goes over the loader.
    shared = [loop for loop in module.loops(node) if loop in around_copy]
    return bool(shared) and isinstance(shared[0], ast.While)
