"""The edits that let processes share an evaluation, and add up what each of them has counted."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping

from ...rewriting.edits import (
    FileEdit,
    InsertAfter,
    InsertBefore,
    RemoveArgument,
    ReplaceExpression,
    SetArgument,
)
from ..calls.reach import lexical_nodes
from ..editing.free_names import free_name
from ..editing.replacing import replacement
from ..facts import DataLoader, called_network
from ..obstacles import Obstacle
from ..program.syntax import Module
from ..program.trees import walk
from ..training.loops import is_forward
from ..values.resolver import Resolver
from .batch_shares import Share
from .evaluation_shares import EvaluationShare, EvaluationShares
from .process_names import Helper, Place, ProcessNames
from .process_sums import Accumulator
from .rank_zero import RankZeroAction
from .told_figures import SharedNumber, ToldFigures, ToldTogether

IsWrapped = Callable[[ast.expr, EvaluationShare], bool]
"""Whether an expression of an evaluation is the network in ``DistributedDataParallel``."""


def training_sum_edits(
    accumulators: tuple[Accumulator, ...], names: ProcessNames
) -> Iterator[FileEdit]:
    """The edits that add up, below a training loop, what each process has added up in it.

    A loop that also evaluates has gone over all of the data then, in every process.
    """
    rows: list[str] = []
    for found in accumulators:
        if found.share in {Share.SAME, None} or not found.read_later:
            continue
        module = found.module
        code = f"{found.name} = {names.helper(Helper.SUM, module)}({found.name})"
        if found.share is Share.MEAN:
            code += f" / {names.name(Place.WORLD_SIZE, module)}"
        rows.append(code)
    if rows:
        loop = accumulators[0].loop
        if loop.phase is not None:
            rows = [f"if {loop.phase.condition}:", *(f"    {row}" for row in rows)]
        yield FileEdit(loop.module.path, InsertAfter(loop.module.span(loop.node), "\n".join(rows)))


def told_figure_edits(
    told: ToldFigures, actions: Collection[RankZeroAction], names: ProcessNames
) -> tuple[list[FileEdit], dict[RankZeroAction, str]]:
    """The edits by which the numbers of all processes are told, and what all do ahead of an action of ``actions``."""
    module = told.module
    edits: list[FileEdit] = []
    ahead: dict[RankZeroAction, str] = {}
    numbers = {node for together in told.together for n in together.numbers for node in n.nodes}
    for size in told.sizes:
        whole = _product_with(size, module, {*numbers, *told.sizes})
        code = f"{module.code(whole)} * {names.name(Place.WORLD_SIZE, module)}"
        edits.append(replacement(module, whole, code))
    for together in told.together:
        called = _names_of_all(together)
        for number, name in called.items():
            for node in number.nodes:
                edits.append(replacement(module, node, name))
        rows = "\n".join(_exchanges(called, module, names))
        action = next((action for action in actions if together.node in action.statements), None)
        if action is not None:
            ahead[action] = rows
        else:
            edits.append(FileEdit(module.path, InsertBefore(module.span(together.node), rows)))
    return edits, ahead


def _product_with(size: ast.expr, module: Module, changed: Collection[ast.expr]) -> ast.expr:
    """``i * len(x)`` for its ``len(x)``, to be multiplied as a whole; ``size`` where it is no such factor."""
    product = module.parents[size]
    if (
        isinstance(product, ast.BinOp)
        and isinstance(product.op, ast.Mult)
        and product.right is size
        and not any(node in changed for node in walk(product.left))
    ):
        return product
    return size


def _names_of_all(together: ToldTogether) -> dict[SharedNumber, str]:
    """What the numbers of all processes are called: ``global_loss`` for ``loss``."""
    found: dict[SharedNumber, str] = {}
    for number in together.numbers:
        wanted = [f"{prefix}_{number.name}" for prefix in ("global", "all", "overall", "_global")]
        wanted += [f"_{wanted[0]}_{index}" for index in range(len(together.numbers))]
        free = [name for name in wanted if name not in found.values()]
        found[number] = free_name(together.module, free) or free[-1]
    return found


def _exchanges(
    called: Mapping[SharedNumber, str], module: Module, names: ProcessNames
) -> Iterator[str]:
    """The rows that give each number its name of ``called``: in one exchange, where they can go together."""
    world = names.name(Place.WORLD_SIZE, module)
    joined = [number for number in called if number.may_join]
    if len(joined) > 1:
        targets = ", ".join(called[number] for number in joined)
        given = ", ".join(
            f"{n.code} / {world}" if n.share is Share.MEAN else n.code for n in joined
        )
        yield f"{targets} = {names.helper(Helper.SUMS, module)}({given})"
    for number, name in called.items():
        if number not in joined or len(joined) == 1:
            mean = f" / {world}" if number.share is Share.MEAN else ""
            yield f"{name} = {names.helper(Helper.SUM, module)}({number.code}){mean}"


def evaluation_edits(
    resolver: Resolver,
    shares: EvaluationShares,
    names: ProcessNames,
    is_wrapped: IsWrapped,
    *,
    same_statistics: bool,
) -> tuple[FileEdit, ...] | Obstacle:
    """The edits that deal out the batches of ``shares`` and add up what is found in them.

    ``same_statistics``: BatchNorm's running statistics are not the same in all processes and have to be made so.
    """
    edits: list[FileEdit] = []
    for share in shares.loops:
        networks = list(_networks(resolver, share))
        elsewhere = {call.network for call in share.loop.forwards} - {*networks}
        if any(same_statistics or is_wrapped(network, share) for network in elsewhere):
            why = "the network runs in a function that the evaluation calls"
            return Obstacle(share.module, elsewhere.pop(), why)
        for network in networks:
            if is_wrapped(network, share):
                world = names.name(Place.WORLD_SIZE, share.module)
                code = share.module.code(network)
                itself = f"{code}.module if {world} > 1 else {code}"
                span = share.module.span(network)
                edits.append(FileEdit(share.module.path, ReplaceExpression(span, itself)))
        if same_statistics:
            edits += _statistics(share, networks, names)
        added = _addition(share, names)
        if isinstance(added, Obstacle):
            return added
        edits += added
    for loader in shares.loaders:
        edits += _dealt_out(loader, names)
    return tuple(edits)


def _networks(resolver: Resolver, share: EvaluationShare) -> Iterator[ast.expr]:
    for node in lexical_nodes(share.node.body):
        if isinstance(node, ast.Call) and is_forward(resolver, node, share.module):
            yield called_network(node)


def _statistics(
    share: EvaluationShare, networks: list[ast.expr], names: ProcessNames
) -> Iterator[FileEdit]:
    module = share.module
    world, dist = names.name(Place.WORLD_SIZE, module), names.distributed(module)
    rows = [f"if {world} > 1:  # evaluate with the running statistics of the first process"]
    for network in dict.fromkeys(module.code(node) for node in networks):
        rows += [
            f"    for buffer in {network}.buffers():",
            f"        {dist}.broadcast(buffer, 0)",
        ]
    if len(rows) > 1:
        yield FileEdit(module.path, InsertBefore(module.span(share.node), "\n".join(rows)))


def _addition(share: EvaluationShare, names: ProcessNames) -> list[FileEdit] | Obstacle:
    module = share.module
    helper = names.helper(Helper.SUM, module)
    rows = [f"{a.name} = {helper}({a.name})" for a in share.accumulators]
    edits: list[FileEdit] = []
    if share.lengths:
        name = free_name(module, ("batches", "batch_count", "all_batches"))
        if name is None:
            return Obstacle(module, share.node, "no name is free for the number of batches")
        rows.append(f"{name} = {helper}({module.code(share.lengths[0])})")
        edits += [replacement(module, call, name) for call in share.lengths]
    return [
        FileEdit(module.path, InsertAfter(module.span(share.node), "\n".join(rows))),
        *edits,
    ]


def _dealt_out(loader: DataLoader, names: ProcessNames) -> Iterator[FileEdit]:
    """The edits that give ``loader`` every so many-th batch, each as it was."""
    module, call = loader.module, loader.node
    statement = module.statement(call)
    rows: list[str] = []
    dataset = loader.arguments["dataset"].value
    code = module.code(dataset)
    if not isinstance(dataset, ast.Name | ast.Attribute):
        name = free_name(module, ("eval_set", "evaluation_set")) or "_eval_set"
        rows.append(f"{name} = {code}")
        code = name
    batches = free_name(module, _batch_names(statement)) or "_eval_batches"
    sampler = names.imported(module, "torch.utils.data", "SequentialSampler")
    batcher = names.imported(module, "torch.utils.data", "BatchSampler")
    size = module.code(loader.arguments["batch_size"].value)
    drop_last = loader.arguments.get("drop_last")
    drops = module.code(drop_last.value) if drop_last is not None else "False"
    rows.append(f"{batches} = {batcher}({sampler}({code}), {size}, drop_last={drops})")
    yield FileEdit(module.path, InsertBefore(module.span(statement), "\n".join(rows)))
    rank, world = names.name(Place.RANK, module), names.name(Place.WORLD_SIZE, module)
    dealt = f"list({batches})[{rank}::{world}]"
    span = module.span(call)
    if len(call.args) > 1:
        others = [
            module.code(k)
            for k in call.keywords
            if k.arg not in {"dataset", "batch_size", "shuffle", "drop_last"}
        ]
        given = ", ".join([code, f"batch_sampler={dealt}", *others])
        whole = f"{module.code(call.func)}({given})"
        yield FileEdit(module.path, ReplaceExpression(span, whole))
        return
    if code != module.code(dataset):
        yield replacement(module, dataset, code)
    for keyword in ("shuffle", "drop_last"):
        if any(k.arg == keyword for k in call.keywords):
            yield FileEdit(module.path, RemoveArgument(span, keyword))
    yield FileEdit(module.path, RemoveArgument(span, "batch_size"))
    yield FileEdit(module.path, SetArgument(span, "batch_sampler", dealt))


def _batch_names(statement: ast.stmt) -> Iterator[str]:
    """What the batches may be called: ``test_batches`` for ``test_loader``."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        stem = statement.targets[0].id
        for ending in ("_dataloader", "_loader", "loader", "_dl"):
            stem = stem.removesuffix(ending)
        yield f"{stem}_batches" if stem else "eval_batches"
    yield from ("eval_batches", "test_batches", "evaluation_batches")
