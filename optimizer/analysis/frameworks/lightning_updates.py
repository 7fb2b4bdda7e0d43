"""Whether the fused kernel may make the steps of an optimizer that Lightning runs.

Lightning steps an optimizer as a loop by hand would, with exceptions. Under mixed precision it does not clip the gradients of fused
optimizers, which unscale them themselves, but raises ("does not allow for gradient clipping"); and hooks between the backward pass and the
step would see gradients that are still scaled
(https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/pytorch/plugins/precision/amp.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..editing.references import quoted
from ..facts import Argument, Optimizer
from ..obstacles import Obstacle
from ..optimizers.fused_updates import under_scaler
from ..program.syntax import FunctionNode, Module
from ..values.resolver import Resolver
from ..values.values import Literal
from .lightning import LightningTrainer, LightningUse, accelerator, keeps_whole_network

_MAKES_OPTIMIZERS = "configure_optimizers"
_SEE_GRADIENTS = frozenset(
    "on_after_backward on_before_optimizer_step configure_gradient_clipping clip_gradients optimizer_step".split()
)
_CLIPPING = ("gradient_clip_val", "gradient_clip_algorithm", "track_grad_norm")
_NO_SCALER = frozenset({32, "32", "32-true", "bf16", "bf16-mixed", "bf16-true"})


def lightning_obstacle(
    resolver: Resolver, use: LightningUse, optimizer: Optimizer
) -> Obstacle | None:
    """What in the use of Lightning speaks against fusing ``optimizer``; None when nothing does."""
    return next(_obstacles(resolver, use, optimizer), None)


def fused_where(resolver: Resolver, use: LightningUse, optimizer: Optimizer) -> str | None:
    """The condition, valid where ``optimizer`` is made, on which Lightning has put its parameters on a GPU; None where it always has."""
    found = {accelerator(resolver, trainer) for trainer in use.trainers}
    if found == {"gpu"} or optimizer.function is None:
        return None
    owner = optimizer.function.args.args[0].arg
    return f"{owner}.device.type == {quoted(optimizer.module, 'cuda')}"


def _obstacles(resolver: Resolver, use: LightningUse, optimizer: Optimizer) -> Iterator[Obstacle]:
    if not _is_made_for(use, optimizer.function, optimizer.module):
        if not _is_made_by_helper(resolver, use, optimizer):
            why = f"it is not made in `{_MAKES_OPTIMIZERS}` of a LightningModule"
            yield Obstacle(optimizer.module, optimizer.node, why)
        elif {accelerator(resolver, trainer) for trainer in use.trainers} != {"gpu"}:
            why = "whether the Trainer has a GPU is not known where it is made"
            yield Obstacle(optimizer.module, optimizer.node, why)
    if not use.trainers:
        yield Obstacle(optimizer.module, optimizer.node, "no Trainer is seen that steps it")
    yield from use.by_hand
    for trainer in use.trainers:
        yield from _in_trainer(resolver, trainer, optimizer)
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.FunctionDef):
            if node.name in _SEE_GRADIENTS and module.enclosing_class(node) is not None:
                why = f"`{node.name}` may see gradients before they are unscaled"
                yield Obstacle(module, node, why)


def _is_made_for(use: LightningUse, function: FunctionNode | None, module: Module) -> bool:
    """Whether ``function`` is that of a LightningModule which makes its optimizers."""
    if function is None or function.name != _MAKES_OPTIMIZERS or not function.args.args:
        return False
    cls = module.enclosing_class(function)
    return any(each.node is cls for each in use.modules)


def _is_made_by_helper(resolver: Resolver, use: LightningUse, optimizer: Optimizer) -> bool:
    """Whether ``optimizer`` is made in a function that nothing but ``configure_optimizers`` calls."""
    if optimizer.function is None:
        return False
    sites = list(resolver.call_sites(optimizer.function))
    return bool(sites) and all(
        _is_made_for(use, site.module.function(site.call), site.module) for site in sites
    )


def _in_trainer(
    resolver: Resolver, trainer: LightningTrainer, optimizer: Optimizer
) -> Iterator[Obstacle]:
    if trainer.opaque is not None:
        yield Obstacle(trainer.module, trainer.node, "the Trainer's arguments are not all known")
    if accelerator(resolver, trainer) is None:
        yield Obstacle(trainer.module, trainer.node, "the Trainer's accelerator is not known")
    strategy = trainer.arguments.get("strategy")
    if strategy is not None and not keeps_whole_network(resolver, strategy):
        yield Obstacle(strategy.module, strategy.value, "the strategy may step it in its own way")
    for name in ("plugins", *_CLIPPING):
        given = trainer.arguments.get(name)
        if given is not None and not resolver.is_always(given.value, given.module, None):
            why = "Lightning does not clip the gradients of fused optimizers in mixed precision"
            if name == "plugins":
                why = "a plugin may step it in its own way"
            yield Obstacle(given.module, given.value, f"{why} (`{name}=`)")
    precision = trainer.arguments.get("precision")
    if precision is not None and not _is_without_scaler(resolver, precision):
        found = under_scaler(resolver, optimizer, Obstacle(precision.module, precision.value, ""))
        if found is not None:
            yield found


def _is_without_scaler(resolver: Resolver, precision: Argument) -> bool:
    values = resolver.values(precision.value, precision.module)
    return all(isinstance(v, Literal) and v.value in _NO_SCALER for v in values)
