"""Whether the batches of a loader can be made smaller, and what in the script counts on their size."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from ...rewriting.edits import FileEdit
from ..calls.printing import is_printed
from ..calls.reach import never_runs, reached_nodes
from ..editing.replacing import replacement
from ..facts import Argument, DataLoader, Fact, Loop
from ..loading.datasets import find_datasets, is_iterable
from ..loading.iterations import Iteration
from ..loading.last_batches import only_trains
from ..loading.loaders import DATALOADER
from ..loading.size_uses import SizeUses
from ..obstacles import Obstacle
from ..program.module_names import name_reads
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Unknown, Value, whole_number
from .shown_tensors import ShownTensors

_FACTORIES = frozenset(
    f"torch.{name}" for name in ("zeros", "ones", "randn", "rand", "empty", "full", "eye")
)
_DIMENSIONS = frozenset("dim dims axis axes dim0 dim1 start_dim end_dim p ord norm_type".split())
_BY_DIMENSION = frozenset(
    "all amax amin any argmax argmin argsort cat concat cumsum flatten flip gather index_select log_softmax logsumexp max "
    "mean median min movedim norm permute prod size softmax sort squeeze stack std sum swapaxes transpose unbind unsqueeze "
    "var".split()
)
"""Functions of tensors, and their methods, of which every whole number is a dimension or the kind of a norm."""
_OTHER_NUMBERS = frozenset(
    "nrow scale_factor upscale_factor kernel_size stride padding dilation groups num_heads num_classes normalized_shape".split()
)
"""Arguments by name that are no number of samples."""
_SHAPED = frozenset({"view", "reshape", "expand"})
_SCHEDULES = ("torch.optim.lr_scheduler.", "transformers.get_", "transformers.optimization.get_")


@dataclass(frozen=True, eq=False)
class BatchDivision:
    """The batch size of a loader divided by ``parts``: where it is written and what it becomes."""

    size: Argument
    number: int
    parts: int

    @property
    def code(self) -> str:
        if isinstance(self.size.value, ast.Constant):
            return str(self.number // self.parts)
        return f"{self.size.module.code(self.size.value)} // {self.parts}"

    @property
    def edit(self) -> FileEdit:
        module = self.size.module
        return replacement(module, self.size.value, self.code)


def divide_batches(
    resolver: Resolver,
    loader: DataLoader,
    parts: int,
    loop: Loop,
    loops: tuple[Loop, ...],
    iterations: tuple[Iteration, ...],
    loaders: tuple[DataLoader, ...],
) -> BatchDivision | Fact:
    """``loader`` with batches of a ``parts``-th of their size, or what forbids that."""
    why = _not_divisible(resolver, loader) or only_trains(resolver, loader, loops, iterations)
    if why is not None:
        return Obstacle(loader.module, loader.node, f"its DataLoader cannot be changed: {why}")
    size = loader.arguments.get("batch_size")
    written = {*loader.node.args, *(keyword.value for keyword in loader.node.keywords)}
    if size is None or size.value not in written:
        why = "the batch size is not written in the call of the DataLoader"
        return Obstacle(loader.module, loader.node, why)
    values = resolver.values(size.value, size.module)
    number = known_number(values)
    if number is None or not isinstance(size.value, ast.Constant | ast.Name | ast.Attribute):
        code = size.module.code(size.value)
        return Obstacle(loader.module, loader.node, f"the batch size `{code}` is not known")
    if number % parts:
        why = f"a batch of {number} samples does not divide into {parts} equal parts"
        return Obstacle(loader.module, loader.node, why)
    return (
        counted_on(resolver, number, loop)
        or (None if isinstance(size.value, ast.Constant) else other_use(resolver, values, loaders))
        or _counts_batches(resolver, loader)
        or BatchDivision(size, number, parts)
    )


def _not_divisible(resolver: Resolver, loader: DataLoader) -> str | None:
    if loader.opaque is not None:
        return f"`{loader.module.code(loader.opaque)}` is not known"
    if resolver.names(loader.node.func, loader.module) != frozenset({DATALOADER}):
        return "its class is the script's own"
    for name in ("sampler", "batch_sampler", "collate_fn"):
        if name in loader.arguments:
            return f"it has a `{name}`"
    datasets = find_datasets(resolver, loader)
    shuffle = loader.arguments.get("shuffle")
    shuffles = shuffle is not None and resolver.is_always(shuffle.value, shuffle.module, True)
    if not shuffles and (
        not datasets or any(is_iterable(resolver, dataset) for dataset in datasets)
    ):
        return "the length of its dataset is not known"
    return None


def known_number(values: Iterable[Value]) -> int | None:
    """The size that ``values`` are, None where it is not known."""
    number = whole_number(values)
    return number if number is not None and number >= 1 else None


def counted_on(
    resolver: Resolver, number: int, loop: Loop, shown: ShownTensors | None = None
) -> Fact | None:
    """Where the step, or a tensor made beforehand, has ``number`` written in it; ``shown`` are tensors that do not count."""
    for reached in reached_nodes(resolver, loop.node.body, loop.module, into_forward=True):
        node = reached.node
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value == number:
            parent = reached.module.parents[node]
            if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod):
                continue
            if _is_index(node, reached.module):
                continue  # there is no sample of that number: they are counted from zero
            if _is_dimension(node, reached.module) or _is_exponent(node, parent):
                continue
            if _is_beside_batch(node, parent):
                continue
            why = f"`{number}` in the step may be the batch size"
            return Obstacle(reached.module, parent, why)
    for module in resolver.project.modules:
        for call in module.calls:
            first = call.args[0] if call.args else None
            if isinstance(first, ast.Tuple | ast.List) and first.elts:
                first = first.elts[0]
            is_number = isinstance(first, ast.Constant) and first.value == number
            makes = is_number and resolver.names(call.func, module) & _FACTORIES
            if (
                makes
                and shown is not None
                and first is not None
                and shown.is_made_of(first, module)
            ):
                continue
            if makes and not never_runs(resolver, call, module):
                why = f"`{number}` in the shape of a tensor may be the batch size"
                return Obstacle(module, call, why)
    return None


def _is_index(number: ast.Constant, module: Module) -> bool:
    """Whether ``number`` picks one element: ``batch[2]``, ``boxes[:, 2]``."""
    parent = module.parents[number]
    inner: ast.AST = number
    if isinstance(parent, ast.Tuple):
        inner, parent = parent, module.parents[parent]
    return isinstance(parent, ast.Subscript) and parent.slice is inner


def _is_dimension(number: ast.expr, module: Module) -> bool:
    """Whether ``number`` says which dimension, or by which norm: ``x.sum((1, 2))``, ``softmax(x, dim=2)``."""
    given: ast.AST = number
    parent = module.parents[number]
    if isinstance(parent, ast.Tuple | ast.List):
        given, parent = parent, module.parents[parent]
    if isinstance(parent, ast.keyword):
        return parent.arg in _DIMENSIONS | _OTHER_NUMBERS
    if isinstance(parent, ast.Assign) and isinstance(given, ast.Tuple | ast.List):
        uses = _reads_of_made(parent, module)
        return bool(uses) and all(_is_dimension(use, module) for use in uses)
    return (
        isinstance(parent, ast.Call)
        and given in parent.args
        and isinstance(parent.func, ast.Attribute)
        and parent.func.attr in _BY_DIMENSION
    )


def _is_beside_batch(number: ast.expr, parent: ast.AST) -> bool:
    """Whether ``number`` is the size of another dimension than that of the samples: ``x.view(x.size(0), 64, 7, 7)``."""
    match parent:
        case ast.Call(func=ast.Attribute(attr=function), args=[first, *others]):
            pass
        case _:
            return False
    match first:
        case (
            ast.Call(func=ast.Attribute(attr="size"), args=[ast.Constant(value=0)])
            | ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=0))
            | ast.UnaryOp(op=ast.USub())
        ):
            return function in _SHAPED and number in others
        case _:
            return False


def _reads_of_made(made: ast.Assign, module: Module) -> list[ast.Name]:
    """Where the one variable that ``made`` binds is read; nothing where it binds more, or is not alone to bind it."""
    if len(made.targets) != 1 or not isinstance(target := made.targets[0], ast.Name):
        return []
    owner = module.scope(target).lookup(target.id)
    return list(name_reads(target, module)) if owner is not None and len(owner[1]) == 1 else []


def _is_exponent(number: ast.Constant, parent: ast.AST) -> bool:
    match parent:
        case ast.BinOp(op=ast.Pow(), right=right):
            return right is number
        case ast.Call(func=ast.Attribute(attr="pow"), args=[*_, last]):
            return last is number
        case _:
            return False


def other_use(
    resolver: Resolver,
    values: frozenset[Value],
    loaders: tuple[DataLoader, ...],
    shown: ShownTensors | None = None,
) -> Fact | None:
    """Where the variable or option that holds the batch size is used for more than loaders, messages and what is worked out of it.

    ``shown`` are tensors that do not count.
    """
    known = frozenset(value for value in values if not isinstance(value, Unknown))
    uses = SizeUses(resolver)
    calls: set[ast.AST] = {loader.node for loader in loaders}
    calls |= {display for loader in loaders for display, _ in loader.displays}
    for module in resolver.project.modules:
        for node in module.nodes:
            if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
                continue
            if not resolver.values(node, module) & (known or values):
                continue
            harmless = _is_harmless(resolver, node, module, calls)
            counted = harmless or uses.only_works_out(node, module)
            counted = counted or (shown is not None and shown.is_made_of(node, module))
            if not counted and not never_runs(resolver, node, module):
                why = f"`{module.code(node)}` has other uses than the DataLoader's batch size"
                return Obstacle(module, module.statement(node), why)
    return None


def _is_harmless(resolver: Resolver, node: ast.expr, module: Module, loaders: set[ast.AST]) -> bool:
    parent = module.parents[node]
    while isinstance(parent, ast.BinOp | ast.keyword):
        parent = module.parents[parent]
    if parent in loaders:
        return True
    parent = module.parents[node]
    if isinstance(parent, ast.keyword):
        parent = module.parents[parent]
    if isinstance(parent, ast.Call) and resolver.callees(parent, module):
        return True  # what a function of the project does with it is seen there
    if isinstance(parent, ast.Assign):
        return all(isinstance(target, ast.Name) for target in parent.targets)
    return is_printed(resolver, node, module) or _is_text(resolver, node, module)


def _is_text(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` becomes part of a text, such as the name of a folder."""
    child = node
    for ancestor in module.ancestors(node):
        match ancestor:
            case ast.stmt() | ast.Lambda():
                return False
            case ast.FormattedValue():
                return True
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str())):
                return child is ancestor.right
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str()), attr="format")):
                return child is not ancestor.func
            case ast.Call() if "builtins.str" in resolver.names(ancestor.func, module):
                return True
            case ast.Call():
                return False
            case _:
                child = ancestor
    return False


def _counts_batches(resolver: Resolver, loader: DataLoader) -> Fact | None:
    """Where the number of batches may decide how the learning rate goes."""
    if not _has_schedule(resolver):
        return None
    for module in resolver.project.modules:
        for call in module.calls:
            if "builtins.len" not in resolver.names(call.func, module) or len(call.args) != 1:
                continue
            values = resolver.values(call.args[0], module)
            if not any(getattr(value, "call", None) is loader.node for value in values):
                continue
            parent = module.parents[call]
            divides = (
                isinstance(parent, ast.BinOp | ast.AugAssign)
                and isinstance(parent.op, ast.Div)
                and call is (parent.right if isinstance(parent, ast.BinOp) else parent.value)
            )
            if not divides and not is_printed(resolver, call, module):
                why = "there would be more batches, and a schedule may count them"
                return Obstacle(module, call, why)
    return None


def _has_schedule(resolver: Resolver) -> bool:
    for module in resolver.project.modules:
        if "param_groups" in module.source.text:
            return True
        for call in module.calls:
            if any(n.startswith(_SCHEDULES) for n in resolver.names(call.func, module)):
                return True
    return False
