"""Evaluations that processes can share: each takes some of the batches, and what they add up is added up once more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.reach import Reached, lexical_nodes, reached_nodes
from ..facts import Argument, DataLoader, Fact, Loop
from ..loading.datasets import find_datasets, is_iterable
from ..loading.loaders import DATALOADER, PARAMETERS
from ..loading.random_draws import is_draw
from ..obstacles import Obstacle
from ..program.name_uses import NameUses
from ..program.reaching import reaching_bindings
from ..program.scopes import Iterated
from ..program.syntax import LoopNode, Module
from ..script import TrainingScript
from ..training.mean_losses import batch_norms
from ..values.resolver import Resolver
from ..values.values import Literal, Made
from .process_sums import Accumulator, find_accumulators

_BAR_METHODS = frozenset({"set_postfix", "set_postfix_str", "set_description", "update"})
_LOADER_SAYS = frozenset({"batch_size", "sampler", "batch_sampler", "drop_last"})
_CONDITIONAL = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension, ast.ListComp, ast.DictComp)


@dataclass(frozen=True, eq=False)
class EvaluationShare(Fact):
    """A loop over batches that only adds up what it finds, so that processes may take turns with the batches.

    ``lengths`` are the places below it that ask for the number of batches.
    """

    node: ast.For
    loop: Loop
    accumulators: tuple[Accumulator, ...]
    lengths: tuple[ast.Call, ...]


@dataclass(frozen=True, eq=False)
class EvaluationShares:
    """The evaluations that can be shared with the loaders they go over, and what forbids it for the others."""

    loops: tuple[EvaluationShare, ...]
    loaders: tuple[DataLoader, ...]
    obstacles: tuple[Obstacle, ...]


def find_evaluation_shares(script: TrainingScript) -> EvaluationShares:
    """The evaluation loops of ``script`` whose batches can be dealt out, as far as all that their loaders serve can."""
    obstacles: list[Obstacle] = []
    loops: list[EvaluationShare] = []
    refused: set[DataLoader] = set()
    for loop in script.evaluation_loops:
        if loop.function is not None and loop.function not in script.functions_run:
            continue
        found = _share(script, loop)
        if isinstance(found, Obstacle):
            obstacles.append(found)
            refused.update(loop.loaders)
        else:
            loops.append(found)
    for loader in dict.fromkeys(loader for share in loops for loader in share.loop.loaders):
        obstacle = _loader_obstacle(script, loader, {share.loop.node for share in loops})
        if obstacle is not None:
            obstacles.append(obstacle)
            refused.add(loader)
    while True:
        left = [share for share in loops if refused.isdisjoint(share.loop.loaders)]
        if len(left) == len(loops):
            break
        refused |= {x for share in loops if share not in left for x in share.loop.loaders}
        loops = left
    for share in list(loops):
        alone = [o for o in loops if o.loop.function is share.loop.function]
        if share.lengths and len(alone) > 1:
            why = "two evaluations of one function count their batches"
            return EvaluationShares((), (), (Obstacle(share.module, share.node, why), *obstacles))
    loaders = tuple(dict.fromkeys(x for share in loops for x in share.loop.loaders))
    return EvaluationShares(tuple(loops), loaders, tuple(obstacles))


def _share(script: TrainingScript, loop: Loop) -> EvaluationShare | Obstacle:
    resolver, module, node = script.resolver, loop.module, loop.node
    if not isinstance(node, ast.For) or node.orelse or not loop.loaders:
        return Obstacle(module, node, "it is no plain loop over a DataLoader")
    accumulators = find_accumulators(resolver, loop)
    obstacle = (
        next(_other_effects(resolver, loop, accumulators), None)
        or next(_carried(loop, accumulators), None)
        or _drawn(resolver, loop)
    )
    if obstacle is not None:
        return obstacle
    if not accumulators:
        return Obstacle(module, node, "it adds up nothing")
    if batch_norms(resolver) and not _in_eval_mode(script, loop):
        why = "BatchNorm may be in train mode there, and learn from every batch"
        return Obstacle(module, node, why)
    lengths: list[ast.Call] = []
    for call, owner in _lengths(resolver, loop):
        same = owner is module and module.function(call) is module.function(node)
        if not same or call.lineno <= (node.end_lineno or node.lineno):
            why = f"`{owner.code(call)}` counts all batches, also where it does not end"
            return Obstacle(owner, call, why)
        lengths.append(call)
    return EvaluationShare(module, node, loop, accumulators, tuple(lengths))


def _in_eval_mode(script: TrainingScript, loop: Loop) -> bool:
    """Whether a network is put in eval mode ahead of ``loop``, and none is seen to be in train mode there."""
    module, node = loop.module, loop.node
    if any(slip.node is node for slip in script.mode_slips):
        return False
    return any(
        call.lineno < node.lineno and module.function(call) is loop.function
        for call in module.calls_named("eval")
    )


def _other_effects(
    resolver: Resolver, loop: Loop, accumulators: tuple[Accumulator, ...]
) -> Iterator[Obstacle]:
    """What the loop does besides adding up."""
    module, summed = loop.module, {a.name for a in accumulators}
    for accumulator in accumulators:
        if accumulator.resets:
            why = f"`{accumulator.name}` becomes zero again in between"
            yield Obstacle(module, accumulator.resets[0], why)
        if accumulator.becomes_array:
            why = f"`{accumulator.name}` may become an array, of which a process without batches knows no shape"
            yield Obstacle(module, accumulator.node, why)
        if accumulator.looked_at:
            why = f"it looks at `{accumulator.name}` while it adds up"
            yield Obstacle(module, accumulator.node, why)
    for node in lexical_nodes(loop.node.body):
        why = _effect(resolver, node, module, summed)
        if why is not None:
            yield Obstacle(module, node, why)
    for reached in reached_nodes(resolver, loop.node.body, module):
        if not reached.direct and _keeps(reached):
            why = f"`{reached.module.code(reached.node)}` is kept"
            yield Obstacle(reached.module, reached.node, why)


def _effect(resolver: Resolver, node: ast.AST, module: Module, summed: set[str]) -> str | None:
    match node:
        case ast.Break() | ast.Return() | ast.Yield() | ast.YieldFrom():
            return "it may end before the last batch"
        case ast.Raise() | ast.Delete() | ast.Await():
            return "what it does is not followed"
        case ast.AugAssign(target=target):
            base = target.value if isinstance(target, ast.Subscript) else target
            if not (isinstance(base, ast.Name) and base.id in summed):
                return f"`{module.code(target)}` is not known to start at zero"
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
            if not isinstance(module.parents[node], ast.AugAssign):
                return f"`{module.code(node)}` is kept"
        case ast.Expr(value=ast.Call() as call):
            if not _is_bar(resolver, call, module):
                return f"`{module.code(call).partition(chr(10))[0]}` is done for every batch"
        case _:
            pass
    return None


def _keeps(reached: Reached) -> bool:
    match reached.node:
        case ast.Global() | ast.Nonlocal():
            return True
        case ast.Attribute(ctx=ast.Store()):
            return True
        case _:
            return False


def _is_bar(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in _BAR_METHODS:
        return False
    makers = resolver.maker_names(function.value, module)
    return bool(makers) and all("tqdm" in name for name in makers)


def _carried(loop: Loop, accumulators: tuple[Accumulator, ...]) -> Iterator[Obstacle]:
    """Variables that go from one batch to the next, or out of the loop, and are no sums."""
    module, scope = loop.module, loop.module.scope(loop.node)
    summed, uses = {a.name for a in accumulators}, NameUses()
    inside = set(lexical_nodes([loop.node]))
    for name, bindings in scope.bindings.items():
        mine = [b for b in bindings if b.node in inside]
        if name in summed or not mine:
            continue
        for binding in mine:
            counts = isinstance(binding.source, Iterated) and binding.source.path[:1] == (0,)
            enumerates = (
                isinstance(loop.node.iter, ast.Call) and "enumerate" in module.code(loop.node.iter)
                if isinstance(loop.node, ast.For)
                else False
            )
            for use in uses.of(binding, module):
                reads = isinstance(use.ctx, ast.Load) or isinstance(
                    module.parents[use], ast.AugAssign
                )
                if reads and use not in inside:
                    why = f"`{name}` of its last batch is used further down"
                    yield Obstacle(module, use, why)
                elif counts and enumerates and isinstance(use.ctx, ast.Load):
                    yield Obstacle(module, use, f"`{name}` counts the batches")
        for use in module.names_of(name):
            if use in inside and isinstance(use.ctx, ast.Load):
                seen = reaching_bindings(module, scope, bindings, module.scope(use), use)
                if any(b in mine for b in seen) and any(b not in mine for b in seen):
                    yield Obstacle(module, use, f"`{name}` goes from one batch to the next")


def _drawn(resolver: Resolver, loop: Loop) -> Obstacle | None:
    for reached in reached_nodes(resolver, loop.node.body, loop.module, into_forward=True):
        node = reached.node
        if isinstance(node, ast.Call):
            names = resolver.names(node.func, reached.module)
            if any(is_draw(name) for name in names):
                why = "it draws random numbers, which would be others in every process"
                return Obstacle(reached.module, node, why)
    return None


def _lengths(resolver: Resolver, loop: Loop) -> Iterator[tuple[ast.Call, Module]]:
    """Where the number of batches of the loop's loaders is asked for."""
    makers = {loader.node for loader in loop.loaders}
    for module in resolver.project.modules:
        for call in module.calls_named("len"):
            if len(call.args) != 1:
                continue
            values = resolver.values(call.args[0], module)
            if any(isinstance(v, Made) and v.call in makers for v in values):
                yield call, module


# Loaders


def _loader_obstacle(
    script: TrainingScript, loader: DataLoader, shared: set[LoopNode]
) -> Obstacle | None:
    resolver, module = script.resolver, loader.module

    def refused(why: str) -> Obstacle:
        return Obstacle(module, loader.node, f"its DataLoader cannot be shared: {why}")

    why = _not_dealt_out(resolver, loader)
    if why is not None:
        return refused(why)
    datasets = find_datasets(resolver, loader)
    if not datasets or any(is_iterable(resolver, dataset) for dataset in datasets):
        return refused("the length of its dataset is not known")
    for iteration in script.iterations:
        if loader in iteration.loaders and not iteration.takes_one and iteration.node not in shared:
            return refused(f"it is also gone over in `{iteration.excerpt}`")
    return next(_asked(resolver, loader), None)


def _not_dealt_out(resolver: Resolver, loader: DataLoader) -> str | None:
    """Why the batches of ``loader`` cannot be written as a list, of which each process takes some."""
    module = loader.module
    if loader.opaque is not None:
        return f"`{module.code(loader.opaque)}` is not known"
    if resolver.names(loader.node.func, module) != frozenset({DATALOADER}):
        return "its class is the script's own"
    written = {*loader.node.args, *(keyword.value for keyword in loader.node.keywords)}
    for name in [*PARAMETERS[:5], "drop_last"]:
        argument = loader.arguments.get(name)
        if argument is not None and argument.value not in written:
            return f"its `{name}` comes by a dict"
        if argument is None and name in {"dataset", "batch_size"}:
            return f"its `{name}` is not given"
        if name in {"sampler", "batch_sampler"} and argument is not None:
            return f"it has a `{name}` of its own"
    shuffle = loader.arguments.get("shuffle")
    if shuffle is not None and not _is_false(resolver, shuffle):
        return "it shuffles"
    if any(isinstance(around, _CONDITIONAL) for around in module.ancestors(loader.node)):
        return "it is not simply made by a statement of its own"
    return None


def _asked(resolver: Resolver, loader: DataLoader) -> Iterator[Obstacle]:
    """Where the loader is asked what it would answer otherwise."""
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Attribute):
            if node.attr in _LOADER_SAYS and any(
                isinstance(v, Made) and v.call is loader.node
                for v in resolver.values(node.value, module)
            ):
                yield Obstacle(module, node, f"`{module.code(node)}` would be another one")


def _is_false(resolver: Resolver, argument: Argument) -> bool:
    values = resolver.values(argument.value, argument.module)
    return bool(values) and all(isinstance(v, Literal) and not v.value for v in values)
