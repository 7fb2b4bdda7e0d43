"""Which losses are a plain mean over the samples of a batch, so that those of its parts add up to it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from ..calls.reach import Reached, lexical_nodes
from ..calls.signatures import call_argument
from ..facts import Fact
from ..obstacles import Obstacle
from ..program.syntax import Module
from ..program.trees import position, walk
from ..values.resolver import Resolver
from ..values.values import Display, Literal, Made, Value
from .batch_targets import BatchTargets
from .steps import StepCode

_LOSSES = {
    "cross_entropy": "CrossEntropyLoss",
    "nll_loss": "NLLLoss",
    "mse_loss": "MSELoss",
    "l1_loss": "L1Loss",
    "smooth_l1_loss": "SmoothL1Loss",
    "huber_loss": "HuberLoss",
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "multilabel_soft_margin_loss": "MultiLabelSoftMarginLoss",
}
_FUNCTIONS = frozenset(f"torch.nn.functional.{name}" for name in _LOSSES)
_LAYERS = frozenset(f"torch.nn.{name}" for name in _LOSSES.values())
_SUMS = frozenset({"size_average", "reduce"})
WEIGHTS = frozenset({"weight", "ignore_index"})
"""Arguments that make a loss a mean in which samples weigh differently."""
_MIXING_FUNCTIONS = frozenset(
    f"torch.{name}"
    for name in ("arange", "eye", "randperm", "roll", "flip", "matmul", "mm", "cdist", "einsum")
)
_MIXING_METHODS = frozenset(
    {"t", "T", "mT", "mm", "matmul", "roll", "flip", "fill_diagonal_", "all_gather"}
)


def not_a_mean(
    resolver: Resolver,
    loss: ast.expr,
    module: Module,
    targets: BatchTargets,
    seen: frozenset[ast.expr] = frozenset(),
) -> Fact | None:
    """What of ``loss`` is not known to be a mean over the samples of a batch and their ``targets``, None when all is.

    ``seen`` are the expressions it was traced from, as in ``loss = loss + other``.
    """
    if loss in seen:
        return None
    seen |= {loss}
    if isinstance(loss, ast.BinOp):
        if isinstance(loss.op, ast.Add):
            parts = (loss.left, loss.right)
            found = (not_a_mean(resolver, part, module, targets, seen) for part in parts)
            return next(filter(None, found), None)
        if isinstance(loss.op, ast.Mult) and _is_number(resolver, loss.left, module):
            return not_a_mean(resolver, loss.right, module, targets, seen)
        if isinstance(loss.op, ast.Mult | ast.Div) and _is_number(resolver, loss.right, module):
            return not_a_mean(resolver, loss.left, module, targets, seen)
        return Obstacle(module, loss, _unknown(module, loss))
    values = resolver.values(loss, module)
    if not values:
        return Obstacle(module, loss, _unknown(module, loss))
    for value in values:
        found = _not_a_mean(resolver, value, Fact(module, loss), targets, seen)
        if found is not None:
            return found
    return None


def averages(resolver: Resolver, loss: ast.Call, module: Module) -> bool:
    """Whether ``loss``, which makes or computes a loss of PyTorch, has it take a mean, in which samples may weigh differently."""
    names = resolver.names(loss.func, module)
    is_function = names <= _FUNCTIONS
    known = bool(names) and (is_function or names <= _LAYERS)
    return known and _weighted(loss, module, 2 if is_function else 0, weighted=True) is None


def compares_samples(nodes: Sequence[Reached], resolver: Resolver) -> Fact | None:
    """Where the samples of a batch meet each other among ``nodes``, the code of a step outside of its networks."""
    for reached in nodes:
        node, module = reached.node, reached.module
        mixes = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
        if isinstance(node, ast.Attribute):
            mixes = node.attr in _MIXING_METHODS
        if isinstance(node, ast.Call):
            mixes = bool(resolver.names(node.func, module) & _MIXING_FUNCTIONS)
        if mixes:
            why = (
                "the step may compare or mix the samples of a batch, of which there would be fewer"
            )
            return Obstacle(module, node, why)
    return None


def sets_reduction(resolver: Resolver) -> Fact | None:
    """Where a loss is told after it is made how to average."""
    for module in resolver.project.modules:
        for node in module.nodes:
            if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
                continue
            names = {"reduction", "weight", "ignore_index", *_SUMS}
            if node.attr in names and resolver.maker_names(node.value, module) & _LAYERS:
                why = "how the loss averages is set after it is made"
                return Obstacle(module, module.statement(node), why)
    return None


def keeps_state(resolver: Resolver, step: StepCode) -> Fact | None:
    """Where a network of ``step`` goes on in one batch where it stopped in the batch before."""
    for reached in step.nodes(resolver, into_forward=True):
        node, module = reached.node, reached.module
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            inside = module.function(node)
            if inside is not None and inside.name == "forward":
                why = "the network keeps something from one batch for the next"
                return Obstacle(module, module.statement(node), why)
    for call in step.loop.forwards:
        if call.module is step.module and step.node in call.module.ancestors(call.node):
            carried = _carried(step, call.node)
            if carried is not None:
                why = f"`{carried.id}` goes from one batch to the next"
                return Obstacle(call.module, call.node, why)
    return None


def _carried(step: StepCode, forward: ast.Call) -> ast.Name | None:
    """The variable that ``forward`` is given as the pass before left it."""
    targets = [step.node.target] if isinstance(step.node, ast.For) else []
    stores = [
        name
        for name in lexical_nodes([*targets, *step.body])
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    ]
    inside = step.module.statement(forward)
    earlier = {
        n.id
        for n in stores
        if position(n) < position(forward) and step.module.statement(n) is not inside
    } | {n.id for target in targets for n in walk(target) if isinstance(n, ast.Name)}
    later = {n.id for n in stores} - earlier
    arguments = [*forward.args, *(keyword.value for keyword in forward.keywords)]
    names = (n for a in arguments for n in walk(a) if isinstance(n, ast.Name))
    return next((name for name in names if name.id in later), None)


def _not_a_mean(
    resolver: Resolver,
    value: Value,
    loss: Fact,
    targets: BatchTargets,
    seen: frozenset[ast.expr],
) -> Fact | None:
    match value:
        case Display(node=ast.BinOp() as node, module=module):
            return not_a_mean(resolver, node, module, targets, seen)
        case Made(call=call, module=module) | Display(node=ast.Call() as call, module=module):
            found = _call_not_a_mean(resolver, call, module, loss, targets)
            if found is None and not targets.has_target(call, module):
                why = "the targets of the loss are not seen to come with the batch, one for each sample"
                return Obstacle(module, call, why)
            return found
        case _:
            return Obstacle(loss.module, loss.node, _unknown(loss.module, loss.node))


def _call_not_a_mean(
    resolver: Resolver, call: ast.Call, module: Module, loss: Fact, targets: BatchTargets
) -> Fact | None:
    """What ``call`` is, if no function or layer that computes a plain mean."""
    calls, by_position = [(call, module)], 2
    names = resolver.names(call.func, module)
    if not (names and names <= _FUNCTIONS):
        layers = resolver.values(call.func, module)
        by_position = 0
        calls = [(made.call, made.module) for made in layers if isinstance(made, Made)]
        kinds = [resolver.names(call.func, owner) for call, owner in calls]
        if not layers or len(calls) < len(layers) or not all(k and k <= _LAYERS for k in kinds):
            return Obstacle(loss.module, loss.node, _unknown(loss.module, loss.node))
    return next(
        filter(None, (_weighted(c, owner, by_position, targets.weighted) for c, owner in calls)),
        None,
    )


def _unknown(module: Module, loss: ast.AST) -> str:
    return f"`{module.code(loss)}` is not known to be a mean over the samples of the batch"


def _weighted(call: ast.Call, module: Module, by_position: int, weighted: bool) -> Fact | None:
    """What makes the loss made or computed by ``call`` another thing than a plain mean."""
    if any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > by_position:
        return Obstacle(module, call, "not all arguments of the loss are known")
    reduction = call_argument(call, "reduction")
    if reduction is not None and not (
        isinstance(reduction, ast.Constant) and reduction.value == "mean"
    ):
        code = module.code(reduction)
        return Obstacle(module, call, f"the loss has `reduction={code}`, it is not a mean")
    for keyword in call.keywords:
        if keyword.arg is None:
            return Obstacle(module, call, "not all arguments of the loss are known")
        if keyword.arg in _SUMS or (keyword.arg in WEIGHTS and not weighted):
            why = f"with `{keyword.arg}` the loss is not a plain mean over the samples"
            return Obstacle(module, call, why)
    return None


def _is_number(resolver: Resolver, factor: ast.expr, module: Module) -> bool:
    values = resolver.values(factor, module)
    return bool(values) and all(
        isinstance(v, Literal) and isinstance(v.value, int | float) for v in values
    )


def batch_norms(resolver: Resolver) -> bool:
    """Whether the project makes layers that normalize by the statistics of a batch, or networks that have some."""
    for module in resolver.project.modules:
        for call in module.calls:
            for name in resolver.names(call.func, module):
                if "BatchNorm" in name or name.startswith(("torchvision.models.", "timm.")):
                    return True
    return False


def weighs_samples(resolver: Resolver, modules: Iterable[Module]) -> bool:
    """Whether a loss of PyTorch is given weights, or targets that do not count."""
    for module in modules:
        for call in module.calls:
            if any(keyword.arg in WEIGHTS for keyword in call.keywords):
                for name in resolver.names(call.func, module):
                    layer = name.startswith("torch.nn.") and "loss" in name.lower()
                    if layer or "cross_entropy" in name:
                        return True
    return False
