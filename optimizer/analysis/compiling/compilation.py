"""Which trained networks can be compiled, where, and what keeps the others from it."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Sequence

from ..autograd.gradient_graphs import (
    gradient_graphs,
    kept_graphs,
    may_build_gradient_graph,
    may_keep_graph,
)
from ..calls.reach import Reached, reached_nodes
from ..facts import CallFact, DataLoader, Fact, Model
from ..networks.forward_code import called_names, parts_given
from ..networks.models import models_behind, models_in
from ..program.classes import class_attribute
from ..program.syntax import FunctionNode, Module
from ..program.trees import position
from ..training.loops import backward_calls, forward_calls, is_forward
from ..training.steps import StepCode
from ..values.resolver import Resolver
from .compile_points import CompilePoint, compile_point
from .graph_breaks import CompileObstacle, compile_obstacles
from .input_loops import loop_over_input

FEWEST_STEPS = 500
"""Compiling takes the time of some hundred steps of most networks; below this number it is not paid back."""
_PADDING = frozenset(
    {
        "torch.nn.utils.rnn.pad_sequence",
        "transformers.DataCollatorWithPadding",
        "transformers.DataCollatorForSeq2Seq",
        "transformers.DataCollatorForLanguageModeling",
    }
)

_BUCKETS = re.compile(r"torchtext\.(legacy\.)?data\.(\w+\.)?(BucketIterator|Iterator)(\.splits)?$")


def compiled_networks(resolver: Resolver) -> tuple[Model, ...]:
    """The networks that are compiled in place (``model.compile()``) somewhere in the script."""
    found: dict[ast.Call, Model] = {}
    for module in resolver.project.modules:
        for call in module.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "compile":
                for model in models_in(resolver, resolver.values(call.func.value, module)):
                    found.setdefault(model.node, model)
    return tuple(found.values())


def copy_run(resolver: Resolver, step: StepCode) -> CallFact | None:
    """A forward pass of ``step`` that only ever runs copies of networks (``copy.deepcopy(net)``)."""
    for call in step.loop.forwards:
        values = resolver.values(call.node.func, call.module)
        if not models_in(resolver, values) and models_behind(resolver, values):
            return call
    return None


def double_backward(resolver: Resolver, step: StepCode) -> Fact | None:
    """A call in the step that keeps the graph of gradients, to differentiate them again."""
    for reached in step.nodes(resolver, into_forward=True):
        node = reached.node
        if isinstance(node, ast.Call) and may_build_gradient_graph(resolver, node, reached.module):
            return Fact(reached.module, node)
    return None


def gradient_graph_beside(
    resolver: Resolver,
    steps: Sequence[StepCode],
    run: Container[FunctionNode | ast.Lambda],
) -> CompileObstacle | None:
    """Code outside the steps that differentiates gradients again, in a function of ``run``: to measure a curvature, for one."""
    graph = next(_beside(resolver, gradient_graphs(resolver), steps, run), None)
    if graph is None:
        return None
    why = "it may be differentiated twice beside the steps seen, which compiled code cannot be"
    return CompileObstacle(graph.module, graph.node, why)


def _beside(
    resolver: Resolver,
    calls: Iterable[CallFact],
    steps: Sequence[StepCode],
    run: Container[FunctionNode | ast.Lambda],
) -> Iterator[CallFact]:
    """Those of ``calls`` outside the steps that the file or a function of ``run`` makes."""
    within: set[ast.AST] | None = None
    for call in calls:
        if within is None:
            within = {
                reached.node
                for step in steps
                for reached in step.nodes(resolver, into_forward=True)
            }
        function = call.module.function(call.node)
        if call.node not in within and (function is None or function in run):
            yield call


def late_kept_graph(
    resolver: Resolver,
    steps: Sequence[StepCode],
    run: Container[FunctionNode | ast.Lambda],
) -> CompileObstacle | None:
    """A backward pass that keeps its graph where another one, which does not, may have run through the same code before.

    The code of a backward pass is compiled when it runs first. Where that frees the graph, it writes over what the graph holds
    (``donated_buffer`` of ``torch._functorch.config``), and a later pass that is to keep the graph fails. Such a pass may also
    run beside the steps, in a function of ``run``: to estimate the Fisher information, for one.
    """
    passes = [
        (call, may_keep_graph(resolver, call.node, call.module))
        for step in steps
        for call in backward_calls(step.nodes(resolver))
    ]
    if all(keeps for _, keeps in passes):
        return None
    kept = [call for call, keeps in passes if keeps]
    kept += _beside(resolver, kept_graphs(resolver), steps, run)
    if not kept:
        return None
    if len(steps) == 1 and all(_is_part_of(steps[0], call) for call, _ in passes):
        first, keeps = min(passes, key=lambda one: position(one[0].node))
        if keeps and _runs_in_every_pass(steps[0], first):
            return None
    why = "a backward pass keeps its graph, which compiled code cannot once another has not"
    return CompileObstacle(kept[0].module, kept[0].node, why)


def _is_part_of(step: StepCode, call: CallFact) -> bool:
    return call.module is step.module and step.node in call.module.ancestors(call.node)


def _runs_in_every_pass(step: StepCode, call: CallFact) -> bool:
    for ancestor in call.module.ancestors(call.module.statement(call.node)):
        if ancestor is step.node:
            return True
        if not isinstance(ancestor, ast.With):
            return False
    return False


def compile_candidates(
    resolver: Resolver,
    step: StepCode,
    trained: Iterable[Model],
    run: frozenset[FunctionNode | ast.Lambda],
) -> Iterator[tuple[CallFact, Model, CompilePoint | CompileObstacle]]:
    """The networks ``step`` trains: a call of each, and its place or what keeps it from being compiled.

    Where it calls none of them, the networks that hold one: ``GaussianDiffusion(unet)``.
    """
    nodes = list(step.nodes(resolver))
    forwards = [
        (call, models_in(resolver, resolver.values(call.node.func, call.module)))
        for call in (*forward_calls(resolver, nodes), *step.loop.forwards)
        if call.network is call.node.func
    ]
    every = [model for _, models in forwards for model in models]
    networks = {network.node for network in trained}
    if all(model.node not in networks for model in every):
        networks |= {model.node for model in every if _holds(resolver, model, networks)}
    called: set[ast.Call] = set()
    named: set[str] = set()
    for call, run_there in forwards:
        models = [model for model in run_there if model.node in networks]
        points = [_point(resolver, model, call, step, run) for model in models]
        # Which of several it is shows at run time: one statement would compile them all.
        refused = next((point for point in points if isinstance(point, CompileObstacle)), None)
        for model, point in zip(models, points, strict=True):
            # A second name may stand for another of them: `net_a, net_b = load(net_a), load(net_b)`.
            name = point.code if isinstance(point, CompilePoint) and len(models) > 1 else None
            if model.node not in called or (name is not None and name not in named):
                called.add(model.node)
                if name is not None:
                    named.add(name)
                yield call, model, refused or point
    for call in _method_calls(resolver, nodes):
        function = call.node.func
        assert isinstance(function, ast.Attribute)
        for model in models_in(resolver, resolver.values(function.value, call.module)):
            if model.node in networks and model.node not in called:
                called.add(model.node)
                why = (
                    f"the step calls `{call.module.code(function)}`, which `compile` does not reach"
                )
                yield call, model, CompileObstacle(call.module, call.node, why)


def _holds(resolver: Resolver, network: Model, parts: Container[ast.Call]) -> bool:
    """Whether ``network``, of a first-party class, was given one of ``parts`` when it was made."""
    return network.cls is not None and any(
        made.call in parts for made in parts_given(resolver, network)
    )


def _point(
    resolver: Resolver,
    network: Model,
    call: CallFact,
    step: StepCode,
    run: frozenset[FunctionNode | ast.Lambda],
) -> CompilePoint | CompileObstacle:
    obstacle = next(compile_obstacles(resolver, network), None) or loop_over_input(
        resolver, network, step.loop.loaders
    )
    if obstacle is not None:
        return obstacle
    if network.cls is not None:
        name = network.cls.node.name
        if class_attribute(resolver, network.cls, "compile"):
            why = f"`{name}` has a method `compile` of its own"
            return CompileObstacle(network.module, network.node, why)
        if class_attribute(resolver, network.cls, "__call__"):
            why = f"`{name}` has a `__call__` of its own, which `compile` does not reach"
            return CompileObstacle(network.module, network.node, why)
    if (network.library_name or "").startswith("torchvision.models.detection."):
        why = "detection networks branch on what they detect"
        return CompileObstacle(network.module, network.node, why)
    why = "no single place above the training loop is seen where the network is final"
    point = compile_point(resolver, call.node.func, call.module, run)
    return point or CompileObstacle(call.module, call.node, why)


def _method_calls(resolver: Resolver, nodes: Iterable[Reached]) -> Iterator[CallFact]:
    """The calls of ``forward``, and of first-party methods that run networks: not ``self.noise(n)``, nor a layer of ``self``."""
    for reached in nodes:
        node, module = reached.node, reached.module
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr == "forward":
            yield CallFact(module, node, node.func.attr)
        elif resolver.callees(node, module) and not is_forward(resolver, node, module):
            inside = reached_nodes(resolver, [node], module)
            if any(True for _ in forward_calls(resolver, inside)):
                yield CallFact(module, node, node.func.attr)


def provable_steps(resolver: Resolver, step: StepCode) -> int | None:
    """How many steps the script takes, where loops over literal ranges say so; None where they do not."""
    place = step.backwards[0].node
    function = step.module.function(place)
    sites = resolver.call_sites(function) if function is not None else ()
    if any(site.module.loops(site.call) for site in sites):
        return None
    total = 1
    for loop in step.module.loops(place):
        count = _range_length(resolver, loop, step.module)
        if count is None:
            return None
        total *= count
    return total if step.module.loops(place) else None


def _range_length(resolver: Resolver, loop: ast.AST, module: Module) -> int | None:
    iterable = loop.iter if isinstance(loop, ast.For) else None
    if not isinstance(iterable, ast.Call) or len(iterable.args) != 1:
        return None
    if "builtins.range" not in resolver.names(iterable.func, module):
        return None
    try:
        count = resolver.literal(iterable.args[0], module)
    except LookupError:
        return None
    return count if isinstance(count, int) else None


def pads_batches(resolver: Resolver, loaders: Iterable[DataLoader]) -> bool:
    """Whether the batches of ``loaders`` are padded to their longest sample, so that shapes vary.

    Those of torchtext's iterators always are; they are no loaders, so any of them in the script counts.
    """
    if any(_BUCKETS.match(n) for m in resolver.project.modules for n in _called(resolver, m)):
        return True
    for loader in loaders:
        collate = loader.arguments.get("collate_fn")
        if collate is None:
            continue
        for value in resolver.values(collate.value, collate.module):
            node = getattr(value, "node", None)
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                owner = getattr(value, "module", collate.module)
                if _pads(resolver, node, owner):
                    return True
            maker = getattr(getattr(value, "maker", None), "name", None)
            if maker in _PADDING:
                return True
    return False


def _called(resolver: Resolver, module: Module) -> Iterator[str]:
    for call in module.calls:
        if isinstance(call.func, ast.Name | ast.Attribute):
            yield from resolver.names(call.func, module)


def _pads(resolver: Resolver, function: ast.FunctionDef | ast.Lambda, module: Module) -> bool:
    body = function.body if isinstance(function.body, list) else [function.body]
    return any(
        called_names(resolver, reached) & _PADDING
        for reached in reached_nodes(resolver, body, module)
    )
