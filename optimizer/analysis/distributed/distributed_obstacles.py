"""What keeps a training from running in several processes: code that DistributedDataParallel would break."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from ..calls.reach import Reached, lexical_nodes, reached_nodes
from ..calls.signatures import argument_for
from ..facts import Fact, Loop, LoopKind, not_one
from ..loading.datasets import DatasetKind, find_datasets
from ..networks.forward_losses import returns_mean
from ..networks.models import may_be_lbfgs
from ..obstacles import Obstacle
from ..precision.precision import find_frameworks
from ..program.reaching import all_assigned
from ..program.scopes import Parameter
from ..program.syntax import Module
from ..script import TrainingScript
from ..training.batch_targets import AnyTargets
from ..training.gradient_penalties import is_of_inputs, takes_gradients
from ..training.loops import backward_calls
from ..training.loss_reductions import LossReductions
from ..training.mean_losses import compares_samples, not_a_mean, sets_reduction
from ..training.permutations import orders_batch
from ..training.reductions import EACH, Reduced, Reduction
from ..training.setup_place import training_blocks
from ..training.steps import Backward, StepCode
from ..values.dataflow import own_nodes
from ..values.resolver import Resolver
from ..values.values import External, Made
from .common_seeds import CommonSeeds
from .data_parallel import DATA_PARALLEL, distributed_call, spread_by_hand
from .process_gpus import gpu_obstacle
from .trained_network import trained_networks

_AVERAGES = re.compile(r"swa_utils|torch_ema|AveragedModel")
_CONVERT = frozenset({"half", "bfloat16", "double"})
_SPLITS = frozenset(
    {
        "torch.utils.data.random_split",
        "torch.randperm",
        "numpy.random.permutation",
        "numpy.random.shuffle",
        "random.shuffle",
        "random.sample",
        "numpy.random.choice",
        "sklearn.model_selection.train_test_split",
    }
)
_ADD_UP = frozenset({Reduction.MEAN, Reduction.WEIGHTED, Reduction.SUM, Reduction.REPLICAS})
"""Losses of which the parts of a batch make up that of the whole."""
_TOLD = frozenset({"generator", "random_state", "seed"})
_LIBRARY = {"torch": "torch", "numpy": "numpy", "random": "random", "sklearn": "numpy"}


def script_obstacle(script: TrainingScript, step: StepCode, seeds: CommonSeeds) -> Fact | None:
    """What of the script as a whole stands against several processes."""
    resolver = script.resolver
    framework = next(iter(find_frameworks(resolver)), None)
    if framework is not None:
        why = f"{framework.framework} runs the training, and spreads it over GPUs itself"
        return Obstacle(framework.module, framework.node, why)
    running = distributed_call(resolver)
    if running is not None:
        return Obstacle(
            running.module, running.node, "the script runs in several processes already"
        )
    by_hand = spread_by_hand(resolver)
    if by_hand is not None:
        return by_hand
    optimizers = [each for each in script.optimizers if script.may_run(each.node, each.module)]
    if not optimizers:
        return Obstacle(step.module, step.backwards[0].node, "no optimizer is seen")
    for optimizer in optimizers:
        if may_be_lbfgs(resolver, optimizer):
            why = "LBFGS calls the network as often as it likes"
            return Obstacle(optimizer.module, optimizer.node, why)
    every = [Reached(n, module, True) for module in script.modules for n in module.nodes]
    backwards = [
        call
        for call in backward_calls(every)
        if not resolver.callees(call.node, call.module) and script.may_run(call.node, call.module)
    ]
    in_step = {backward.node for backward in step.backwards}
    if len(backwards) > 1 and (step.callers or not in_step.issuperset(b.node for b in backwards)):
        why = not_one(backwards, "backward pass", "backward passes")
        return Obstacle(backwards[1].module, backwards[1].node, why)
    return (
        gpu_obstacle(resolver)
        or _converted(script)
        or _unseeded(script, seeds)
        or _gathered(script, step, seeds)
        or _averages(script)
    )


def _converted(script: TrainingScript) -> Fact | None:
    """Where a network gets another type once it is wrapped: the buckets of its gradients are made for the first."""
    for module in script.modules:
        for call in module.calls:
            if not (isinstance(call.func, ast.Attribute) and call.func.attr in _CONVERT):
                continue
            values = script.values(call.func.value, module)
            if any(isinstance(v, Made) and v.maker == External(DATA_PARALLEL) for v in values):
                why = "the network gets another type once it is wrapped, which DistributedDataParallel does not take"
                return Obstacle(module, call, why)
    return None


def step_obstacle(script: TrainingScript, step: StepCode) -> Fact | None:
    """What in the training step is another thing when every process has only a part of the batch."""
    resolver, module = script.resolver, step.module
    for backward in step.backwards:
        if backward.node.args or any(k.arg != "retain_graph" for k in backward.node.keywords):
            return Obstacle(module, backward.node, "the backward pass has arguments of its own")
    reached = list(step.nodes(resolver))
    mixing = compares_samples(
        [
            each
            for each in _behind_loss(resolver, step)
            if not (
                isinstance(each.node, ast.Call) and orders_batch(resolver, each.node, each.module)
            )
        ],
        resolver,
    )
    if mixing is not None:
        why = "the loss may compare the samples of a batch, of which every process would have only a part"
        return Obstacle(mixing.module, mixing.node, why)
    asking = [r for r in reached if takes_gradients(resolver, r.node, r.module)]
    asking.sort(key=lambda each: _is_penalty(resolver, each))  # what is none, first
    thawed = _thaws(script, step)
    if thawed is not None:
        return thawed
    for backward in step.backwards:
        loss = unscaled(resolver, backward.loss, module)
        reduction = loss_reduction(resolver, step, backward)
        if reduction is Reduction.MIXED:
            why = "the loss hangs on a mean or a sum over the samples of a batch, or compares them, and every process would have only a part of those"
            return Obstacle(module, backward.loss, why)
        for each in asking[:1]:
            if reduction not in _ADD_UP or not _is_penalty(resolver, each):
                why = "gradients are asked for by `torch.autograd.grad`, which no other process hears of"
                return Obstacle(each.module, each.node, why)
        found = not_a_mean(resolver, loss, module, AnyTargets())
        if found is not None and returns_mean(resolver, loss, module):
            found = None
        if found is not None and reduction not in _ADD_UP:
            return found
    return sets_reduction(resolver)


def _is_penalty(resolver: Resolver, reached: Reached) -> bool:
    call = reached.node
    return isinstance(call, ast.Call) and is_of_inputs(resolver, call, reached.module)


def _behind_loss(resolver: Resolver, step: StepCode) -> Iterator[Reached]:
    """What runs for the losses to be computed; not what only measures, such as an accuracy."""
    behind = step.behind_losses | {backward.statement for backward in step.backwards}
    for statement in sorted(behind, key=lambda s: s.lineno):
        yield from reached_nodes(resolver, own_nodes(statement), step.module)
    for region in step.regions if step.callers else ():
        yield from reached_nodes(resolver, region.statements, region.module)


def loss_reduction(resolver: Resolver, step: StepCode, backward: Backward) -> Reduced:
    """How the loss of ``backward``, in ``step``, is reduced from the samples of its batch."""
    loss = _without_scaler(resolver, backward.loss, step.module)
    return LossReductions(resolver, step.node).of(loss, step.module)


def _thaws(script: TrainingScript, step: StepCode) -> Fact | None:
    """Where parameters begin or cease to be trained once the network is wrapped, which settles which of them are.

    All of a network at once may, as a discriminator does while its generator learns, where nothing else says what is trained: no gradient of it
    is waited for then.
    """
    trained = _Trained(script, step)
    why = "what is trained changes in the course of the training"
    on_the_way: set[ast.AST] = set()
    for block in list(training_blocks(script, methods=True))[-1:]:
        for reached in reached_nodes(script.resolver, [block.trains], block.module):
            if trained.is_changed(reached.node, reached.module):
                on_the_way.add(reached.node)
                if not trained.is_whole(reached.node, reached.module):
                    return Obstacle(reached.module, reached.node, why)
    for module in script.modules if on_the_way else ():
        for node in module.nodes_of(ast.Attribute):
            beforehand = trained.is_changed(node, module) and node not in on_the_way
            if beforehand and script.may_run(node, module):
                return Obstacle(module, node, why)
    return None


class _Trained:
    """Answers for places that say whether a tensor requires gradients."""

    def __init__(self, script: TrainingScript, step: StepCode) -> None:
        self._script, self._step = script, step
        self._reductions = LossReductions(script.resolver, step.node)
        optimizers = [each for each in script.optimizers if script.may_run(each.node, each.module)]
        networks = trained_networks(script, optimizers, step.loop)
        self._wholes = {call for n in networks if not n.in_parts for call in n.made}

    def is_changed(self, node: ast.AST, module: Module) -> TypeGuard[ast.Attribute]:
        """Whether ``node`` sets that of anything but a tensor that is calculated."""
        return (
            isinstance(node, ast.Attribute)
            and node.attr in {"requires_grad", "requires_grad_"}
            and (isinstance(node.ctx, ast.Store) or node.attr.endswith("_"))
            and not _is_calculated(node.value, module)
            and not self._is_of_batch(node.value, module)
        )

    def _is_of_batch(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is of the samples of the batch, here or where it is given to a function."""
        if self._step.node in module.ancestors(node):
            return self._reductions.of(node, module) in EACH
        found = module.scope(node).lookup(node.id) if isinstance(node, ast.Name) else None
        if found is None or len(found[1]) != 1 or not isinstance(found[1][0].source, Parameter):
            return False
        function, name = found[1][0].source.function, found[1][0].name
        if isinstance(function, ast.Lambda):
            return False
        given = [
            (passed.given, site.module)
            for site in self._script.resolver.call_sites(function)
            if (passed := argument_for(function, name, site.call, site.bound)) is not None
        ]
        return bool(given) and all(
            one is not None
            and self._step.node in owner.ancestors(one)
            and self._reductions.of(one, owner) in EACH
            for one, owner in given
        )

    def is_whole(self, node: ast.Attribute, module: Module) -> bool:
        """Whether it is that of all parameters of a network."""
        models = self._script.models_of(_whose_parameters(node.value, module), module)
        return bool(models) and {model.node for model in models} <= self._wholes


def _is_calculated(node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is no parameter but what was calculated: the samples between real ones and fakes."""
    match node:
        case ast.BinOp():
            return True
        case ast.Call(func=ast.Attribute(attr="detach" | "clone")):
            return True
        case ast.Name():
            values = all_assigned(module, node)
            return bool(values) and all(_is_calculated(value, module) for value in values)
        case _:
            return False


def _whose_parameters(node: ast.expr, module: Module) -> ast.expr:
    """The network of which ``node`` is each parameter in turn; ``node`` itself where it is none."""
    for around in module.ancestors(node):
        match node, around:
            case (
                ast.Name(id=name),
                ast.For(
                    target=ast.Name(id=each),
                    iter=ast.Call(func=ast.Attribute(value=network, attr="parameters"), args=[]),
                ),
            ) if name == each:
                return network
            case _:
                pass
    return node


def unscaled(resolver: Resolver, loss: ast.expr, module: Module) -> ast.expr:
    """``loss`` without the scaling that float16 needs, and without the mean over DataParallel's replicas."""
    match _without_scaler(resolver, loss, module):
        case ast.Call(func=ast.Attribute(value=inner, attr="mean"), args=[], keywords=[]):
            return unscaled(resolver, inner, module)
        case inner:
            return inner


def _without_scaler(resolver: Resolver, loss: ast.expr, module: Module) -> ast.expr:
    match loss:
        case ast.Call(func=ast.Attribute(value=scaler, attr="scale"), args=[inner], keywords=[]):
            makers = resolver.maker_names(scaler, module)
            if makers and all(name.endswith("GradScaler") for name in makers):
                return inner
        case _:
            pass
    return loss


def _unseeded(script: TrainingScript, seeds: CommonSeeds) -> Fact | None:
    """Where data is split by chance, and by another chance in every process."""
    for module in script.modules:
        for call in module.calls:
            for name in script.resolver.names(call.func, module) & _SPLITS:
                told = [k.value for k in call.keywords if k.arg in _TOLD]
                library = _LIBRARY[name.partition(".")[0]]
                if not script.may_run(call, module) or orders_batch(script.resolver, call, module):
                    continue
                if not told and not script.seeding.is_seeded(library):
                    why = f"drawn without a seed, this would be another one in every process (seed {library})"
                    return Obstacle(module, call, why)
                alike = not any(seeds.differs(each, module) for each in told)
                if not alike or (not told and not seeds.are_alike(library)):
                    why = "this would be another one in every process, for so is its seed"
                    return Obstacle(module, call, why)
    return None


def _gathered(script: TrainingScript, step: StepCode, seeds: CommonSeeds) -> Fact | None:
    """Where tensors to be trained on, such as features, are gathered in an order that every process shuffles by itself."""
    datasets = (find_datasets(script.resolver, loader) for loader in step.loop.loaders)
    in_memory = any(d.kind is DatasetKind.IN_MEMORY for found in datasets for d in found)
    if not in_memory or seeds.are_alike("torch"):
        return None
    for loop in script.loops:
        if loop.kind in {LoopKind.TRAINING, LoopKind.EPOCHS} or not _gathers(loop):
            continue
        for loader in loop.loaders:
            if loader not in step.loop.loaders and "shuffle" in loader.arguments:
                shuffle = loader.arguments["shuffle"]
                if not script.resolver.is_always(shuffle.value, shuffle.module, False):
                    why = "gathered from a shuffled DataLoader without a common seed, the data would have another order in every process (seed torch)"
                    return Obstacle(loader.module, loader.node, why)
    return None


def _gathers(loop: Loop) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in {"append", "extend"}
        for node in lexical_nodes([loop.node])
    )


def _averages(script: TrainingScript) -> Fact | None:
    for module in script.modules:
        found = module.search(_AVERAGES)
        if found is not None:
            return Obstacle(
                module, module.tree, f"`{found.group()}` keeps an average of the weights"
            )
    return None
