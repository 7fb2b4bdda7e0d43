"""The edits that put networks in ``DistributedDataParallel``, and let the training step call those."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
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
from ..program.trees import position
from ..script import TrainingScript
from ..training.setup_place import Block, training_blocks
from ..values.values import Class
from .data_parallel import DataParallelUse, later_move
from .process_names import Place, ProcessNames

_COPIED_FORWARD_SINCE = (2, 13)
"""What ``forward_sync_buffers`` takes the place of ``broadcast_buffers`` in."""


@dataclass(frozen=True)
class Wrapping:
    """What ``DistributedDataParallel`` is told.

    ``runs_often``: the network runs several times in a step. Copied from the first process ahead of each time, buffers would
    change while the graph of the time before needs them.
    """

    names: ProcessNames
    sync_batchnorm: bool
    find_unused: bool
    runs_often: bool
    torch_version: tuple[int, int]

    def call(self, module: Module, network: str, arguments: str = "") -> str:
        """The expression that wraps ``network``."""
        cls = self.names.imported(module, "torch.nn.parallel", "DistributedDataParallel")
        if self.sync_batchnorm:
            layer = self.names.spelled(module, "torch.nn.SyncBatchNorm")
            network = f"{layer}.convert_sync_batchnorm({network})"
        if self.find_unused:
            arguments += ", find_unused_parameters=True"
        if self.runs_often:
            copied = self.torch_version >= _COPIED_FORWARD_SINCE
            arguments += f", {'forward_sync' if copied else 'broadcast'}_buffers=False"
        return f"{cls}({network}{arguments})"


@dataclass(frozen=True)
class OwnDraws:
    """Random numbers of its own for every process: torch's, and with ``numpy`` those as well."""

    names: ProcessNames
    numpy: bool

    def rows(self, module: Module) -> list[str]:
        """The statements that see to it."""
        torch = self.names.spelled(module, "torch")
        rank = self.names.name(Place.RANK, module)
        rows = [
            "# every process draws its own dropout masks and augmentations",
            f"{torch}.manual_seed({torch}.initial_seed() + {rank})",
        ]
        if self.numpy:
            rows[0] = "# every process draws its own noise and dropout masks"
            seed = self.names.spelled(module, "numpy.random.seed")
            rows.append(f"{seed}({torch}.initial_seed() % 2**32)")
        return rows


def wrap_beside(
    script: TrainingScript, wrapped: Sequence[tuple[NetworkFlow, Wrapping]], draws: OwnDraws | None
) -> tuple[FileEdit, ...] | Obstacle:
    """The edits that keep each wrapped network in a variable of its own, for the training step alone.

    Whatever else uses the networks still has the networks themselves: checkpoints keep their keys. With ``draws``, those begin
    behind it.
    """
    (flow, wrapping), *others = wrapped
    module, names = flow.module, wrapping.names
    block = _block(script, flow)
    if isinstance(block, Obstacle):
        return block
    for other, _ in others:
        there = _block(script, other)
        if isinstance(there, Obstacle):
            return there
        if there.trains is not block.trains:
            why = "the networks that are trained are made in different functions"
            return Obstacle(other.module, other.node, why)
    for each, _ in wrapped:
        taken = wrapped_name(each).rpartition(".")[2]
        if taken in module.source.text:
            return Obstacle(module, each.node, f"`{taken}` is a name of the script's own")
    called = ", ".join(wrapped_name(each) for each, _ in wrapped)
    rows = [
        f"{called} = {', '.join(module.code(each.node) for each, _ in wrapped)}",
        f"if {names.name(Place.WORLD_SIZE, module)} > 1:",
        *(f"    {wrapped_name(e)} = {w.call(module, module.code(e.node))}" for e, w in wrapped),
    ]
    if draws is not None:
        rows += [f"    {row}" for row in draws.rows(module)]
    edits = [FileEdit(module.path, InsertBefore(module.span(block.trains), "\n".join(rows), True))]
    for each, _ in wrapped:
        edits += [replacement(module, use, wrapped_name(each)) for use in each.uses]
        for reached in each.uses_of_network_itself(script.resolver):
            if not reached.direct:
                code = excerpt(reached.module, reached.module.statement(reached.node))
                why = f"`{code}` needs the network itself, in a function that training and others call"
                return Obstacle(reached.module, reached.node, why)
            name = reached.module.code(reached.node)
            itself = (
                f"{name}.module if {names.name(Place.WORLD_SIZE, reached.module)} > 1 else {name}"
            )
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


@dataclass(frozen=True)
class Replacing:
    """A ``DataParallel`` whose place ``DistributedDataParallel`` takes in several processes.

    With ``in_place`` that is where it stands, whatever tests are around it.
    """

    use: DataParallelUse
    wrapping: Wrapping
    in_place: bool

    @property
    def test(self) -> ast.If | None:
        """The test whose first branch the use is a statement of, unless it is wrapped in place."""
        outer = self.use.module.parents[self.use.statement]
        if isinstance(outer, ast.If) and self.use.statement in outer.body and not self.in_place:
            return outer
        return None

    @property
    def later(self) -> ast.Call | None:
        """The move of the network further down, where it is not moved as it is wrapped."""
        return None if self.use.moves else later_move(self.use)

    @property
    def tested(self) -> ast.If | None:
        """The test below the use by which the script decides on that move: whether there is a GPU."""
        move, module = self.later, self.use.module
        if move is None:
            return None
        around = {*module.ancestors(self.use.statement)}
        tests = [a for a in module.ancestors(move) if isinstance(a, ast.If) and a not in around]
        return tests[-1] if tests else None

    @property
    def row(self) -> str:
        """The statement that wraps the network where it belongs."""
        use, names, module = self.use, self.wrapping.names, self.use.module
        moves = "".join(use.moves)
        if self.later is not None and self.tested is None:
            moves = module.code(self.later)[len(module.code(use.target)) :]
        devices = f"[{names.name(Place.LOCAL_RANK, module)}]"
        if ".cuda(" not in moves:
            devices += f" if {names.spelled(module, 'torch')}.cuda.is_available() else None"
        network = module.code(use.network) + moves
        wrapped = self.wrapping.call(module, network, f", device_ids={devices}")
        return f"{module.code(use.target)} = {wrapped}"


def wrap_instead(
    script: TrainingScript, replacing: Sequence[Replacing], draws: OwnDraws
) -> tuple[FileEdit, ...] | Obstacle:
    """The edits that wrap networks in ``DistributedDataParallel`` where torchrun runs, else in DataParallel as before.

    Whatever the test says under which DataParallel does it, but for uses that are wrapped in place.
    Both call the network inside ``module``, so that checkpoints keep their keys.
    """
    blocks = list(training_blocks(script, methods=True))
    edits: list[FileEdit] = []
    for each in replacing:
        use = each.use
        if not blocks:
            why = "the way from the network to its training is not seen"
            return Obstacle(use.module, use.node, why)
        if each.tested is not None and each.in_place:
            return Obstacle(use.module, use.node, "the network is moved by a test of its own")
        together = _whole_test(each, replacing)
        if not together:
            edits += _wrapped_by_itself(each)
        elif each is together[0]:
            edits.append(_wrapped_by_test(together))
    return (_own_draws(blocks[-1], draws), *edits)


def _whole_test(one: Replacing, replacing: Sequence[Replacing]) -> list[Replacing]:
    """Those of ``replacing`` that are all that the test around ``one`` is there for; none where it does more."""
    test, module = one.test, one.use.module
    if test is None or test.orelse or is_elif(module, test):
        return []
    inside = [each for each in replacing if each.test is test and each.tested is None]
    inside.sort(key=lambda each: position(each.use.statement))
    return inside if test.body == [each.use.statement for each in inside] else []


def _wrapped_by_test(together: Sequence[Replacing]) -> FileEdit:
    """``together``, with another test ahead of the one around them."""
    first = together[0]
    module, test = first.use.module, first.test
    assert test is not None
    world = first.wrapping.names.name(Place.WORLD_SIZE, module)
    rows = [f"if {world} > 1:", *(f"    {each.row}" for each in together)]
    rows.append(f"elif {module.code(test.test)}:")
    rows += [_indented(module, each.use.statement) for each in together]
    return FileEdit(module.path, ReplaceStatement(module.span(test), "\n".join(rows)))


def _wrapped_by_itself(replaced: Replacing) -> Iterator[FileEdit]:
    module, statement = replaced.use.module, replaced.use.statement
    world = replaced.wrapping.names.name(Place.WORLD_SIZE, module)
    distributed = f"if {world} > 1:\n    {replaced.row}"
    below = replaced.tested or replaced.test
    if below is None:
        code = f"{distributed}\nelse:\n{_indented(module, statement)}"
        yield FileEdit(module.path, ReplaceStatement(module.span(statement), code))
        return
    alone = f"if {world} == 1:\n{_indented(module, statement)}"
    yield FileEdit(module.path, ReplaceStatement(module.span(statement), alone))
    # the network is where it belongs below
    place = module.span(outermost_test(module, below))
    yield FileEdit(module.path, InsertAfter(place, distributed))


def _indented(module: Module, statement: ast.stmt) -> str:
    """``statement`` as it stands one level deeper."""
    return indent(module.unindented_code(statement), "    ")


def _own_draws(block: Block, draws: OwnDraws) -> FileEdit:
    """Random numbers of its own for every process, once all that has to be the same in them is drawn."""
    module = block.module
    world = draws.names.name(Place.WORLD_SIZE, module)
    code = "\n".join([f"if {world} > 1:", *(f"    {row}" for row in draws.rows(module))])
    return FileEdit(module.path, InsertBefore(module.span(block.trains), code, True))
