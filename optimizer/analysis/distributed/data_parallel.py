"""Where a script spreads a network over GPUs already: ``nn.DataParallel`` and ``torch.distributed``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ...rewriting.edits import FileEdit, SetArgument
from ..calls.reach import never_runs
from ..calls.signatures import call_argument
from ..facts import CallFact, Fact, excerpt
from ..networks.models import is_module_class
from ..obstacles import Obstacle
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Class, Made
from .process_names import Place, ProcessNames

_PACKAGE = "torch.nn.parallel."
DATA_PARALLEL = f"{_PACKAGE}DataParallel"
_IN_FORWARD = f"{_PACKAGE}data_parallel"
_BY_HAND = frozenset({"replicate", "parallel_apply", "scatter", "gather"})
_DISTRIBUTED = frozenset(
    {
        "torch.distributed.init_process_group",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.multiprocessing.spawn",
        "torch.distributed.fsdp.FullyShardedDataParallel",
        "apex.parallel.DistributedDataParallel",
        "horovod.torch.init",
    }
)
_MOVES = frozenset({"cuda", "to"})


@dataclass(frozen=True, eq=False)
class DataParallelUse(Fact):
    """``statement`` is ``name = nn.DataParallel(network).cuda()``; ``moves`` are the moves behind the wrapper.

    ``condition`` is the test under which it is wrapped, if there is one.
    """

    node: ast.Call
    statement: ast.Assign
    network: ast.expr
    moves: tuple[str, ...]
    condition: ast.expr | None

    @property
    def target(self) -> ast.expr:
        return self.statement.targets[0]


def wraps_in_either_branch(uses: Sequence[DataParallelUse]) -> bool:
    """Whether ``uses`` are two of one variable, one in each branch of a test: whichever runs, the network is wrapped."""
    if len(uses) != 2 or uses[0].module is not uses[1].module:
        return False
    one, other = uses
    module, test = one.module, one.module.parents[one.statement]
    return (
        isinstance(test, ast.If)
        and module.parents[other.statement] is test
        and (one.statement in test.body) is not (other.statement in test.body)
        and ast.unparse(one.target) == ast.unparse(other.target)
    )


def distributed_call(resolver: Resolver) -> CallFact | None:
    """The first call by which the script runs in several processes already."""
    for module in resolver.project.modules:
        for call in module.calls:
            names = sorted(resolver.names(call.func, module) & _DISTRIBUTED)
            if names and not never_runs(resolver, call, module):
                return CallFact(module, call, names[0])
    return None


def data_parallel_calls(resolver: Resolver) -> tuple[CallFact, ...]:
    """The calls of ``nn.DataParallel``."""
    return _calls_of(resolver, DATA_PARALLEL)


def spread_forwards(resolver: Resolver) -> tuple[CallFact, ...]:
    """The calls of ``nn.parallel.data_parallel``, by which a network spreads a part of itself in its forward pass."""
    return _calls_of(resolver, _IN_FORWARD)


def _calls_of(resolver: Resolver, name: str) -> tuple[CallFact, ...]:
    return tuple(
        CallFact(module, call, name)
        for module in resolver.project.modules
        if name.removeprefix(_PACKAGE) in module.source.text
        for call in module.calls
        if name in resolver.names(call.func, module)
    )


def spread_over_gpus(resolver: Resolver) -> tuple[CallFact, ...]:
    """Where the script spreads a network over GPUs in one process, by the wrapper or in a forward pass."""
    return data_parallel_calls(resolver) + spread_forwards(resolver)


def spread_by_hand(resolver: Resolver) -> Obstacle | None:
    """Where the script spreads a network over GPUs by other means than torch's own wrapper or function."""
    for module in resolver.project.modules:
        for call in module.calls:
            means = _means_by_hand(resolver, call, module)
            if means is not None and not never_runs(resolver, call, module):
                return Obstacle(module, call, f"`{excerpt(module, call.func)}`{means}")
    return None


def _means_by_hand(resolver: Resolver, call: ast.Call, module: Module) -> str | None:
    """What is told of such a ``call`` behind what it calls."""
    names = resolver.names(call.func, module)
    if any(n.startswith(_PACKAGE) and n.rpartition(".")[2] in _BY_HAND for n in names):
        return " spreads the network over GPUs by hand"
    made = (v for v in resolver.values(call.func, module) if isinstance(v, Class))
    if any(DATA_PARALLEL in resolver.base_names(cls) for cls in made):
        return ", a `DataParallel` of the script's own, spreads the network over GPUs"
    return None


def calls_around(
    resolver: Resolver, calls: Sequence[CallFact], forwards: Sequence[CallFact]
) -> Sequence[CallFact]:
    """Those of ``calls`` that wrap the network of ``forwards``, all of them where that is not seen.

    Others wrap what is not trained: a teacher, or the network that another function evaluates.
    """
    values = [v for f in forwards for v in resolver.values(f.node.func, f.module)]
    made = {value.call for value in values if isinstance(value, Made)}
    around = [call for call in calls if call.node in made]
    is_seen = bool(values) and all(isinstance(value, Made) for value in values)
    return around if around or is_seen else calls


def data_parallel_use(resolver: Resolver, call: CallFact) -> DataParallelUse | Obstacle:
    """The statement around a call of ``nn.DataParallel``, or why it is left alone."""
    module = call.module
    network = call_argument(call.node, "module", 0)
    if network is None:
        return Obstacle(module, call.node, "what is wrapped is not seen")
    outer: ast.expr = call.node
    moves: list[str] = []
    while True:
        parent = module.parents[outer]
        grand = module.parents.get(parent)
        if (
            isinstance(parent, ast.Attribute)
            and parent.attr in _MOVES
            and isinstance(grand, ast.Call)
            and grand.func is parent
        ):
            whole, inner = module.code(grand), module.code(outer)
            moves.append(whole[len(inner) :])
            outer = grand
            continue
        break
    statement, condition = module.parents[outer], None
    if (
        isinstance(statement, ast.IfExp)
        and outer is statement.body
        and ast.dump(statement.orelse) == ast.dump(network)
    ):
        statement, condition = module.parents[statement], statement.test
    if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
        return Obstacle(module, call.node, "the wrapped network is not simply kept in a variable")
    target = statement.targets[0]
    if isinstance(target, ast.Name | ast.Attribute):
        around = module.parents[statement]
        if condition is None and isinstance(around, ast.If) and statement in around.body:
            condition = around.test
        return DataParallelUse(module, call.node, statement, network, tuple(moves), condition)
    return Obstacle(module, call.node, "the wrapped network is not simply kept in a variable")


def wraps_part(resolver: Resolver, call: CallFact) -> bool:
    """Whether ``call`` wraps a part of a network, kept as its attribute: ``model.features = nn.DataParallel(..)``."""
    module, statement = call.module, call.module.statement(call.node)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Attribute):
        return False
    if isinstance(target.value, ast.Name) and target.value.id == "self":
        cls = module.enclosing_class(target)
        return cls is not None and is_module_class(resolver, Class(cls, module))
    return True


def part_edit(call: CallFact, names: ProcessNames) -> FileEdit:
    """The edit by which ``nn.DataParallel`` around a part of a network, or what is not trained, keeps to the GPU of its process.

    It stays wrapped, so that checkpoints keep their keys. So with ``nn.parallel.data_parallel``.
    """
    module, position = call.module, 2 if call.name == _IN_FORWARD else 1
    given = call_argument(call.node, "device_ids", position)
    before = module.code(given) if given is not None else "None"
    mine, world = names.name(Place.LOCAL_RANK, module), names.name(Place.WORLD_SIZE, module)
    code = f"[{mine}] if {world} > 1 else {before}"
    return FileEdit(module.path, SetArgument(module.span(call.node), "device_ids", code, position))


def later_move(use: DataParallelUse) -> ast.Call | None:
    """The move of the wrapped network to its device further down: ``model.cuda()``."""
    module: Module = use.module
    target = module.code(use.target)
    wanted = ast.dump(ast.parse(target, mode="eval").body)
    for call in module.calls:
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and function.attr in _MOVES
            and call.lineno > use.statement.lineno
            and module.function(call) is module.function(use.statement)
            and ast.dump(ast.parse(module.code(function.value), mode="eval").body) == wanted
        ):
            return call
    return None
