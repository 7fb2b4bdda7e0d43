"""Steep functions and losses of what a network returns, after autocast has ended or on the host, where it does nothing.

A softmax, sigmoid or exponential takes the type it is given: of half precision it gives probabilities that are half as
exact again, and that vanish in float16; a loss gives a number of three digits. The ones autocast runs in float32 itself are in
https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-autocast-to-float32.
"""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..program.reaching import all_assigned
from ..program.syntax import Module
from ..values.resolver import Resolver
from .half_products import may_run_outside

_IN_FLOAT32 = frozenset(
    "softmax log_softmax softmin softplus exp expm1 log log2 log10 log1p logsumexp".split()
)
"""Those that autocast runs in float32."""
_LOSSES = frozenset(
    "binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy hinge_embedding_loss kl_div l1_loss "
    "margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss poisson_nll_loss smooth_l1_loss "
    "soft_margin_loss triplet_margin_loss".split()
)
_LOSS_LAYERS = frozenset(
    "BCEWithLogitsLoss CosineEmbeddingLoss CrossEntropyLoss HingeEmbeddingLoss KLDivLoss L1Loss MarginRankingLoss MSELoss "
    "MultiMarginLoss MultiLabelMarginLoss NLLLoss PoissonNLLLoss SmoothL1Loss SoftMarginLoss TripletMarginLoss".split()
)
"""Losses that autocast runs in float32, as functions and as modules."""
_STEEP = _IN_FLOAT32 | frozenset({"sigmoid", "logsigmoid", "softmax_", "sigmoid_"})


def steep_operand(resolver: Resolver, call: ast.Call, module: Module) -> ast.expr | None:
    """The tensor whose steep function or loss ``call`` computes; None where it does nothing of the kind.

    Whatever is given to such a function is a floating-point tensor, or is taken for one.
    """
    if _is_loss_layer(resolver, call, module):
        return call_argument(call, "input", 0)
    function = _function(resolver, call, module)
    if function not in _STEEP | _LOSSES:
        return None
    if resolver.names(call.func, module):
        return call_argument(call, "input", 0)
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _is_loss_layer(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    layers = {name.rpartition(".")[2] for name in resolver.maker_names(call.func, module)}
    return bool(layers) and layers <= _LOSS_LAYERS


def is_host_copy(node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is what was copied to the host: ``out.detach().cpu()``, or a variable that holds nothing else."""
    match node:
        case ast.Call(func=ast.Attribute(attr="cpu")):
            return True
        case ast.Call(func=ast.Attribute(attr="to"), args=[ast.Constant(value="cpu")]):
            return True
        case ast.Call(func=ast.Attribute(value=inner)) | ast.Subscript(value=inner):
            return is_host_copy(inner, module)
        case ast.Name():
            values = all_assigned(module, node)
            return bool(values) and all(is_host_copy(value, module) for value in values)
        case _:
            return False


def gives_float32(
    resolver: Resolver, call: ast.Call, module: Module, covered: frozenset[ast.AST]
) -> bool:
    """Whether ``call`` computes in float32, by autocast or once its operand is made so outside of what is ``covered``."""
    function = _function(resolver, call, module)
    is_loss = function in _LOSSES or _is_loss_layer(resolver, call, module)
    if may_run_outside(resolver, call, module, covered):
        return function in _STEEP or is_loss
    return function in _IN_FLOAT32 or is_loss


def _function(resolver: Resolver, call: ast.Call, module: Module) -> str | None:
    """The name of the function of torch, or of the method of what may be a tensor, that ``call`` calls."""
    names = resolver.names(call.func, module)
    if names:
        found = {name.rpartition(".")[2] for name in names if name.startswith("torch.")}
        return found.pop() if len(found) == len(names) == 1 else None
    if isinstance(call.func, ast.Attribute) and not resolver.callees(call, module):
        return call.func.attr
    return None
