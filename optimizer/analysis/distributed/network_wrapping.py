"""The edits that put a network in ``DistributedDataParallel``, and let the training step call that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import indent

from ...rewriting.edits import (
    FileEdit,
    InsertAfter,
    InsertBefore,
    ReplaceExpression,
    ReplaceStatement,
)
from ..calls.reach import reached_nodes
from ..editing.replacing import replacement
from ..facts import excerpt
from ..networks.models import is_module_class
from ..networks.network_flow import NetworkFlow
from ..obstacles import Obstacle
from ..program.statements import is_elif, outermost_test
from ..program.syntax import Module
from ..script import TrainingScript
from ..training.setup_place import Block, training_blocks
from ..values.values import Class
from .data_parallel import DataParallelUse, later_move
from .process_names import Place, ProcessNames


@dataclass(frozen=True)
class Wrapping:
    """What ``DistributedDataParallel`` is told."""

    names: ProcessNames
    sync_batchnorm: bool
    find_unused: bool

    def call(self, module: Module, network: str, arguments: str = "") -> str:
        """The expression that wraps ``network``."""
        cls = self.names.imported(module, "torch.nn.parallel", "DistributedDataParallel")
        if self.sync_batchnorm:
            layer = self.names.spelled(module, "torch.nn.SyncBatchNorm")
            network = f"{layer}.convert_sync_batchnorm({network})"
        if self.find_unused:
            arguments += ", find_unused_parameters=True"
        return f"{cls}({network}{arguments})"

    def own_draws(self, module: Module) -> str:
        """The statements that give every process random numbers of its own."""
        torch = self.names.spelled(module, "torch")
        rank = self.names.name(Place.RANK, module)
        return (
            "# every process draws its own dropout masks and augmentations\n"
            f"{torch}.manual_seed({torch}.initial_seed() + {rank})"
        )


def wrap_beside(
    script: TrainingScript, flow: NetworkFlow, wrapping: Wrapping
) -> tuple[FileEdit, ...] | Obstacle:
    """The edits that keep the wrapped network in a variable of its own, for the training step alone.

    Whatever else uses the network still has the network itself: checkpoints keep their keys.
    """
    module = flow.module
    block = _block(script, flow)
    if isinstance(block, Obstacle):
        return block
    wrapped = wrapped_name(flow)
    taken = wrapped.rpartition(".")[2]
    if taken in module.source.text:
        return Obstacle(module, flow.node, f"`{taken}` is a name of the script's own")
    network = module.code(flow.node)
    world = wrapping.names.name(Place.WORLD_SIZE, module)
    rows = [
        f"{wrapped} = {network}",
        f"if {world} > 1:",
        f"    {wrapped} = {wrapping.call(module, network)}",
        *(f"    {row}" for row in wrapping.own_draws(module).split("\n")),
    ]
    edits = [FileEdit(module.path, InsertBefore(module.span(block.trains), "\n".join(rows), True))]
    for use in flow.uses:
        edits.append(replacement(module, use, wrapped))
    for reached in flow.uses_of_network_itself(script.resolver):
        if not reached.direct:
            code = excerpt(reached.module, reached.module.statement(reached.node))
            why = f"`{code}` needs the network itself, in a function that training and others call"
            return Obstacle(reached.module, reached.node, why)
        name = reached.module.code(reached.node)
        there = wrapping.names.name(Place.WORLD_SIZE, reached.module)
        itself = f"{name}.module if {there} > 1 else {name}"
        span = reached.module.span(reached.node)
        edits.append(FileEdit(reached.module.path, ReplaceExpression(span, itself)))
    return tuple(edits)


def wrapped_name(flow: NetworkFlow) -> str:
    """What the wrapped network is called beside the network itself."""
    if isinstance(flow.node, ast.Name):
        return f"ddp_{flow.node.id}"
    return f"{flow.module.code(flow.node.value)}.ddp_{flow.node.attr}"


def _block(script: TrainingScript, flow: NetworkFlow) -> Block | Obstacle:
    """The statements that lead to the training where the network has its variable."""
    module = flow.module
    blocks = [
        block
        for block in training_blocks(script, methods=True)
        if block.module is module and _sees(flow, block)
    ]
    if not blocks:
        why = "the network is made where the way to the training is not seen"
        return Obstacle(module, flow.node, why)
    block = blocks[-1]
    if isinstance(flow.node, ast.Attribute):
        owner = module.enclosing_class(flow.node)
        if owner is not None and is_module_class(script.resolver, Class(owner, module)):
            why = (
                "the network is part of another one, of which the wrapped one would be a part, too"
            )
            return Obstacle(module, flow.node, why)
    inside = {r.node for r in reached_nodes(script.resolver, [block.trains], module)}
    for binding in _stores(flow):
        is_below = block.trains.lineno <= binding.lineno <= (
            block.trains.end_lineno or 0
        ) and module.function(binding) is module.function(block.trains)
        if is_below or binding in inside:
            why = "the network is made anew in the course of the training"
            return Obstacle(module, binding, why)
    return block


def _sees(flow: NetworkFlow, block: Block) -> bool:
    """Whether the variable of the network is one of the function (or module) that ``block`` is in."""
    module, function = flow.module, flow.module.function(block.trains)
    if isinstance(flow.node, ast.Attribute):
        mine = module.enclosing_class(flow.node)
        return (
            function is not None and mine is not None and mine is module.enclosing_class(function)
        )
    found = module.scope(flow.node).lookup(flow.node.id)
    return found is not None and found[0].node is (function or module.tree)


def _stores(flow: NetworkFlow) -> Iterator[ast.expr]:
    module, name = flow.module, flow.node
    if isinstance(name, ast.Name):
        found = module.scope(name).lookup(name.id)
        for binding in found[1] if found else ():
            if isinstance(binding.node, ast.Name):
                yield binding.node
        return
    for node in module.nodes:
        if (
            isinstance(node, ast.Attribute)
            and node.attr == name.attr
            and isinstance(node.ctx, ast.Store)
        ):
            yield node


def wrap_instead(
    script: TrainingScript, use: DataParallelUse, wrapping: Wrapping, *, in_place: bool
) -> tuple[FileEdit, ...] | Obstacle:
    """The edits that wrap a network in ``DistributedDataParallel`` where torchrun runs, else in DataParallel as before.

    Whatever the test says under which DataParallel does it, but for uses that are wrapped ``in_place``.
    Both call the network inside ``module``, so that checkpoints keep their keys.
    """
    blocks = list(training_blocks(script, methods=True))
    if not blocks:
        return Obstacle(
            use.module, use.node, "the way from the network to its training is not seen"
        )
    module, statement = use.module, use.statement
    world = wrapping.names.name(Place.WORLD_SIZE, module)
    later = None if use.moves else later_move(use)
    tested = _tested(module, use, later) if later is not None else None
    moves = "".join(use.moves)
    if later is not None and tested is None:
        moves = module.code(later)[len(module.code(use.target)) :]
    devices = f"[{wrapping.names.name(Place.LOCAL_RANK, module)}]"
    if ".cuda(" not in moves:
        devices += f" if {wrapping.names.spelled(module, 'torch')}.cuda.is_available() else None"
    wrapped = wrapping.call(module, module.code(use.network) + moves, f", device_ids={devices}")
    begin = f"if {world} > 1:\n    {module.code(use.target)} = {wrapped}\n"
    edits = [_own_draws(blocks[-1], wrapping)]
    outer = module.parents[statement]
    if tested is not None and in_place:
        return Obstacle(module, use.node, "the network is moved by a test of its own")
    if tested is not None:  # the network is where it belongs below
        alone = f"if {world} == 1:\n{_indented(module, statement)}"
        below = module.span(outermost_test(module, tested))
        edits.append(FileEdit(module.path, ReplaceStatement(module.span(statement), alone)))
        edits.append(FileEdit(module.path, InsertAfter(below, begin.rstrip())))
        return tuple(edits)
    if isinstance(outer, ast.If) and statement in outer.body and not in_place:
        if outer.body == [statement] and not outer.orelse and not is_elif(module, outer):
            test = module.code(outer.test)
            code = f"{begin}elif {test}:\n{_indented(module, statement)}"
            return (*edits, FileEdit(module.path, ReplaceStatement(module.span(outer), code)))
        alone = f"if {world} == 1:\n{_indented(module, statement)}"
        edits.append(FileEdit(module.path, ReplaceStatement(module.span(statement), alone)))
        below = module.span(outermost_test(module, outer))
        edits.append(FileEdit(module.path, InsertAfter(below, begin.rstrip())))
        return tuple(edits)
    code = f"{begin}else:\n{_indented(module, statement)}"
    return (*edits, FileEdit(module.path, ReplaceStatement(module.span(statement), code)))


def _indented(module: Module, statement: ast.stmt) -> str:
    """``statement`` as it stands one level deeper."""
    return indent(module.unindented_code(statement), "    ")


def _tested(module: Module, use: DataParallelUse, move: ast.Call) -> ast.If | None:
    """The test below ``use`` by which the script decides on ``move``: whether there is a GPU."""
    around = {*module.ancestors(use.statement)}
    tests = [a for a in module.ancestors(move) if isinstance(a, ast.If) and a not in around]
    return tests[-1] if tests else None


def _own_draws(block: Block, wrapping: Wrapping) -> FileEdit:
    """Random numbers of its own for every process, once all that has to be the same in them is drawn."""
    module = block.module
    world = wrapping.names.name(Place.WORLD_SIZE, module)
    rows = wrapping.own_draws(module).split("\n")
    code = "\n".join([f"if {world} > 1:", *(f"    {row}" for row in rows)])
    return FileEdit(module.path, InsertBefore(module.span(block.trains), code, True))
