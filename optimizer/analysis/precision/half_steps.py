"""Which training steps and evaluations may run in half precision, and what forbids it for the others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..autograd.gradient_graphs import may_build_gradient_graph
from ..autograd.input_gradients import input_gradient
from ..calls.reach import Reached, never_runs, reached_nodes
from ..calls.signatures import call_argument
from ..editing.own_attributes import own_name
from ..facts import CallFact, Fact, Model, excerpt
from ..networks.forward_code import (
    called_names,
    forward_code,
    method_name,
    networks_run,
    weights_read,
)
from ..networks.models import models_in, steps_lbfgs
from ..networks.shared_parts import joined_networks
from ..obstacles import Bfloat16Obstacle, Obstacle, ProbabilityLoss
from ..optimizers.late_backwards import late_backwards
from ..program.syntax import Module
from ..program.trees import is_true
from ..training.loops import forward_calls, is_forward
from ..training.loss_regions import Region, runs_forward, suspended_code, suspends_gradients
from ..training.steps import EvaluationCode, StepCode
from ..values.dataflow import Flow, own_nodes
from ..values.resolver import Resolver
from ..values.values import External, Made
from .float_values import FloatTrace
from .gradient_checks import gradient_checks
from .half_precision import half_precision_obstacles
from .half_range import range_obstacles
from .half_rankings import ranking
from .half_trace import HalfTrace
from .probability_ratios import probability_ratios
from .product_angles import half_angles
from .recurrent_layers import recurrent_layers
from .scaled_similarities import scaled_similarities
from .unknown_losses import unknown_losses

NO_NETWORK = "no network is known to run in the code that computes this loss"
_SPARSE_PACKAGES = frozenset(
    {"torch_geometric", "torch_sparse", "torch_scatter", "dgl", "MinkowskiEngine", "spconv"}
)
_DATA_PARALLEL = frozenset(
    {
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.data_parallel",
        "torch.nn.parallel.parallel_apply",
    }
)
_SCRIPTED = (
    "torch.jit.",
    "torch.fx.",
    "torch.export.",
    "torch.ao.quantization.",
    "torch.quantization.",
)
_QUANTIZING = (
    "torch.ao.quantization.",
    "torch.quantization.",
    "torchao.quantization.",
    "brevitas.",
    "pytorch_quantization.",
    "bitsandbytes.nn.",
    "auto_gptq.",
)
_CAPTURED = ("torch.cuda.graph", "torch.cuda.CUDAGraph", "torch.cuda.make_graphed_callables")


@dataclass(frozen=True, eq=False)
class HalfCode:
    """Code that may run in half precision: its networks, the forward passes in it, and what forbids only float16 or only bfloat16.

    ``covered`` is all that would run under autocast.
    """

    code: StepCode | EvaluationCode
    networks: tuple[Model, ...]
    forwards: frozenset[ast.Call]
    covered: frozenset[ast.AST]
    float16_obstacles: tuple[Obstacle, ...]
    bfloat16_obstacles: tuple[Bfloat16Obstacle, ...]


def half_code(resolver: Resolver, code: StepCode | EvaluationCode) -> HalfCode | Obstacle:
    """``code`` as it may run in half precision, or what forbids that."""
    if isinstance(code, StepCode) and (obstacle := _in_the_whole_step(resolver, code)):
        return obstacle
    if isinstance(code, EvaluationCode) and (obstacle := _gradients_evaluated(resolver, code)):
        return obstacle
    nodes = list(_nodes(resolver, code, into_forward=True))
    forwards = forward_calls(resolver, [*_nodes(resolver, code, into_forward=False)])
    past = _past_the_call(resolver, _whole(resolver, code))
    if not forwards:
        return next(past, None) or Obstacle(code.module, _place(code), NO_NETWORK)
    # What runs past its call would stay in float32, and be given what is rounded beside it.
    if isinstance(code, StepCode) and (outside := next((p for p in past if not _is_own(p)), None)):
        return outside
    networks = networks_run(resolver, nodes)
    obstacles = [*_without_gradients(resolver, code), *code_obstacles(resolver, nodes, forwards)]
    calls = frozenset(call.node for call in forwards)
    if isinstance(code, StepCode):
        obstacles += probability_ratios(resolver, nodes, calls)
        obstacles += scaled_similarities(resolver, [*nodes, *forward_code(resolver, networks)])
        obstacles += gradient_checks(resolver, code)
        obstacles += unknown_losses(resolver, code, nodes)
    if isinstance(code, EvaluationCode) and (ranked := ranking(resolver, code, calls)):
        obstacles.append(ranked)
    forbidding = [o for o in obstacles if o.forbids(float16=True) and o.forbids(float16=False)]
    if forbidding:
        # What can be rewritten comes last: without it, the others would still stand.
        return min(forbidding, key=lambda obstacle: isinstance(obstacle, ProbabilityLoss))
    covered = frozenset(reached.node for reached in nodes)
    only_float16 = tuple(o for o in obstacles if o.float16_only)
    only_bfloat16 = tuple(o for o in obstacles if isinstance(o, Bfloat16Obstacle))
    return HalfCode(code, networks, calls, covered, only_float16, only_bfloat16)


def _whole(resolver: Resolver, code: StepCode | EvaluationCode) -> Iterator[Reached]:
    """Every node that runs in ``code``, whether it leads to a loss or not."""
    if isinstance(code, StepCode):
        return code.nodes(resolver)
    return reached_nodes(resolver, code.body, code.module)


def _past_the_call(resolver: Resolver, nodes: Iterable[Reached]) -> Iterator[Obstacle]:
    """Where ``nodes`` run a network by its method ``forward``, past its call: what that does is not followed."""
    for node, module, _ in nodes:
        match node:
            case ast.Call(func=ast.Attribute(network, "forward")):
                followed = is_forward(resolver, node, module)
                if not followed and models_in(resolver, resolver.values(network, module)):
                    code, called = excerpt(module, node), module.code(network)
                    why = f"`{code}` goes past the call of the network, `{called}(..)`, which alone is followed"
                    yield Obstacle(module, node, why)
            case _:
                pass


def _is_own(past: Obstacle) -> bool:
    """Whether a network calls its own ``forward``, in another of its methods."""
    match past.node:
        case ast.Call(func=ast.Attribute(ast.Name(name))):
            return name == own_name(past.node, past.module)
        case _:
            return False


def code_obstacles(
    resolver: Resolver, nodes: Sequence[Reached], forwards: Sequence[CallFact]
) -> list[Obstacle]:
    """What in ``nodes``, in the forward passes they run and in the script does not survive half precision."""
    networks = networks_run(resolver, nodes)
    seen = [*nodes, *forward_code(resolver, networks)]
    inner = frozenset(call.node for call in forward_calls(resolver, seen))
    rounded = HalfTrace(resolver, inner).may_be_half
    return [
        *_unknown_networks(resolver, forwards),
        *half_precision_obstacles(resolver, seen),
        *_numpy(resolver, seen, forwards),
        *range_obstacles(resolver, seen, rounded),
        *half_angles(resolver, seen, rounded),
        *_sparse_gradients(resolver),
        *_overflow_raises(resolver),
        *recurrent_layers(resolver, networks),
    ]


def _numpy(
    resolver: Resolver, nodes: Iterable[Reached], forwards: Iterable[CallFact]
) -> Iterator[Obstacle]:
    """Where what autocast may have computed goes to NumPy, in functions and forward passes that run under it.

    Not where it is what a network returned: that can be made float32 again.
    """
    producers = {call.node: call.module for call in forwards}
    floats = FloatTrace(resolver, producers)
    trace = HalfTrace(resolver, frozenset(producers))
    for reached in nodes:
        node, module = reached.node, reached.module
        if reached.direct or not isinstance(node, ast.Call):
            continue
        if method_name(resolver, reached) != "numpy" or not isinstance(node.func, ast.Attribute):
            continue
        given = node.func.value
        if not floats.is_other(given, module) and not trace.may_be_half(given, module):
            why = "NumPy has no bfloat16: a forward pass that leaves PyTorch cannot run in it"
            yield Obstacle(module, node, why)


def runs_network_without_gradients(resolver: Resolver, reached: Reached) -> bool:
    """Whether ``reached`` is a ``with torch.no_grad():``, or a call of a function decorated so, that runs a network."""
    return suspends_gradients(resolver, reached.node, reached.module) and runs_forward(
        resolver, suspended_code(reached.node), reached.module
    )


def _place(code: StepCode | EvaluationCode) -> ast.AST:
    return code.backwards[0].node if isinstance(code, StepCode) else code.node


def _nodes(
    resolver: Resolver, code: StepCode | EvaluationCode, *, into_forward: bool
) -> Iterator[Reached]:
    """Every node that would run under autocast, those of forward passes when asked for."""
    roots: dict[Module, list[ast.AST]] = {}
    for region in code.regions:
        roots.setdefault(region.module, []).extend(region.statements)
    if isinstance(code, StepCode):
        computed = [backward.loss for backward in code.backwards if backward.computes]
        roots.setdefault(code.module, []).extend(computed)
    for module, statements in roots.items():
        yield from reached_nodes(resolver, statements, module, into_forward=into_forward)


def _in_the_whole_step(resolver: Resolver, step: StepCode) -> Obstacle | None:
    gradient = input_gradient(resolver, step)
    if gradient is not None:
        return gradient
    for reached in step.nodes(resolver, into_forward=True):
        node = reached.node
        if not isinstance(node, ast.Call):
            continue
        if may_build_gradient_graph(resolver, node, reached.module):
            why = "the step differentiates its gradients (a gradient penalty), which autocast does not cover"
            return Obstacle(reached.module, node, why)
        if "torch.autograd.grad" in called_names(resolver, reached) and not _apart_from(
            resolver, step, reached
        ):
            why = "the step takes gradients by hand (`torch.autograd.grad`)"
            return Obstacle(reached.module, node, why)
    for call in step.loop.optimizer_steps:
        if steps_lbfgs(resolver, call.node, call.module):
            why = "LBFGS estimates curvature from differences of gradients, which half precision drowns"
            return Obstacle(call.module, call.node, why)
    for _, late in late_backwards(resolver, step):
        why = "a backward pass may need weights that an optimizer has changed since: PyTorch raises there, but sees no change of autocast's casts"
        return Obstacle(late.module, late.node, why)
    return None


def _gradients_evaluated(resolver: Resolver, code: EvaluationCode) -> Obstacle | None:
    """An evaluation that differentiates, an attack for instance: no scaler keeps small gradients from vanishing there."""
    for reached in reached_nodes(resolver, [code.node], code.module, into_forward=True):
        names = called_names(resolver, reached) if isinstance(reached.node, ast.Call) else ()
        if "torch.autograd.grad" in names:
            why = "the evaluation takes gradients by hand (`torch.autograd.grad`)"
            return Obstacle(reached.module, reached.node, why)
    return None


def _apart_from(resolver: Resolver, step: StepCode, call: Reached) -> bool:
    """Whether ``call`` differentiates what its own function computes, outside of what the step's loss is made of."""
    assert isinstance(call.node, ast.Call)
    function = call.module.function(call.node)
    if call.direct or function is None:
        return False
    under_autocast = {reached.node for reached in _nodes(resolver, step, into_forward=True)}
    if call.node in under_autocast:
        return False
    outputs = call_argument(call.node, "outputs", 0)
    flow = Flow(call.module, tuple(function.body))
    statement = call.module.statement(call.node)
    behind = flow.statements_behind(outputs, statement) if outputs is not None else ()
    return any(runs_forward(resolver, own_nodes(s), call.module) for s in behind)


def _unknown_networks(resolver: Resolver, forwards: Iterable[Fact]) -> Iterator[Obstacle]:
    """Networks that were scripted, traced or exported: autocast does not reach into them."""
    for call in forwards:
        assert isinstance(call.node, ast.Call)
        for value in resolver.values(call.node.func, call.module):
            maker = value.maker if isinstance(value, Made) else None
            if isinstance(maker, External) and maker.name.startswith(_SCRIPTED):
                yield Obstacle(call.module, call.node, f"the network is made by `{maker.name}`")


def _without_gradients(resolver: Resolver, code: StepCode | EvaluationCode) -> Iterator[Obstacle]:
    """Networks that one region runs without gradients and then with, deeper inside than regions can be divided."""
    if isinstance(code, EvaluationCode):
        return
    for region in code.regions:
        if len(region.statements) == 1 and suspends_gradients(
            resolver, region.first, region.module
        ):
            continue
        reached = list(reached_nodes(resolver, region.statements, region.module))
        for suspended in reached:
            node = suspended.node
            if not suspends_gradients(resolver, node, suspended.module):
                continue
            inside = {
                r.node for r in reached_nodes(resolver, suspended_code(node), suspended.module)
            }
            without = weights_read(resolver, [r for r in reached if r.node in inside])
            outside = [r for r in reached if r.node not in inside]
            others = weights_read(
                resolver, [r for r in outside if not _earlier(region, r, suspended)]
            )
            if without & others:
                why = "a network runs without gradients before it runs with them, and autocast keeps the weights cast without"
                yield Obstacle(suspended.module, node, why)
            elif any(without & pair and others & pair for pair in joined_networks(resolver)):
                why = "a network runs without gradients before one that it shares a part with runs with them, and autocast keeps the weights cast without"
                yield Obstacle(suspended.module, node, why)


def _earlier(region: Region, one: Reached, other: Reached) -> bool:
    """Whether ``one`` only runs before ``other``: above it in the region itself, in no loop of the region with it."""
    if not (one.direct and other.direct and isinstance(one.node, ast.expr)):
        return False
    module = region.module
    shared = set(module.loops(one.node)) & set(module.loops(other.node))
    return module.span(one.node) < module.span(other.node) and shared == set(
        module.loops(region.first)
    )


def _sparse_gradients(resolver: Resolver) -> Iterator[Obstacle]:
    for module in resolver.project.modules:
        for call in module.calls:
            sparse = call_argument(call, "sparse")
            if is_true(sparse):
                names = resolver.names(call.func, module)
                if names & {"torch.nn.Embedding", "torch.nn.EmbeddingBag"}:
                    why = "sparse gradients of an embedding do not go through a GradScaler reliably"
                    yield Obstacle(module, call, why, True)


def _overflow_raises(resolver: Resolver) -> Iterator[Obstacle]:
    """Checks that raise at an infinite gradient: a GradScaler finds its scale by running into them."""
    for module in resolver.project.modules:
        for call in module.calls:
            names = resolver.names(call.func, module)
            strict = call_argument(call, "error_if_nonfinite")
            if names & {"torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly"}:
                mode = call_argument(call, "mode", 0) or call_argument(call, "check_nan")
                if not (isinstance(mode, ast.Constant) and mode.value is False):
                    yield Obstacle(
                        module, call, "anomaly detection raises when gradients overflow", True
                    )
            elif strict is not None and not (isinstance(strict, ast.Constant) and not strict.value):
                yield Obstacle(module, call, "clipping raises when gradients overflow", True)


def script_obstacle(resolver: Resolver, packages: frozenset[str]) -> Obstacle | None:
    """What about the script as a whole forbids half precision."""
    for module in resolver.project.modules:
        for call in module.calls:
            why = _in_script(called_names(resolver, Reached(call, module, True)))
            if why is not None and not never_runs(resolver, call, module):
                return Obstacle(module, call, why)
    sparse = sorted(packages & _SPARSE_PACKAGES)
    if sparse:
        entry = resolver.project.entry
        why = f"the kernels of {sparse[0]} are not all implemented for half precision"
        return Obstacle(entry, entry.tree, why)
    return None


def _in_script(names: Iterable[str]) -> str | None:
    for name in names:
        if name.startswith(_QUANTIZING):
            return f"`{name}` quantizes, and rounds to its steps what it is given in float32"
        if name.startswith(_CAPTURED):
            return "the step is captured in a CUDA graph"
        if name.startswith("torch.sparse") or name in {"torch.spmm", "torch.hspmm"}:
            return "sparse tensors have no half-precision products"
    return None


def data_parallel(resolver: Resolver) -> Obstacle | None:
    """``nn.DataParallel``, or what it is made of: replica threads take autocast's switch from the main thread, but not its type.

    They run in float16, the default (``torch/nn/parallel/parallel_apply.py``; the type is thread-local).
    """
    for module in resolver.project.modules:
        for call in module.calls:
            if resolver.names(call.func, module) & _DATA_PARALLEL:
                return Obstacle(module, call, "DataParallel replicas run autocast in float16 only")
    return None
