"""Loss scaling that a script does itself, without the autocast that it is for: half of mixed precision, which changes nothing.

A scaled loss makes gradients that are larger by a power of two, and they are divided by it again: in float32 that costs a little and
buys nothing. What is missing is ``torch.autocast`` around the forward pass, in float16 and where the scaler is enabled
(https://docs.pytorch.org/docs/stable/notes/amp_examples.html). A disabled scaler does nothing, and neither does such an autocast.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...options import AmpDtype, Options
from ...rewriting.edits import FileEdit
from ..calls.reach import lexical_nodes
from ..calls.signatures import call_argument
from ..devices.network_device import network_device
from ..facts import CallFact, DeviceKind, Fact
from ..program.scopes import Parameter
from ..program.syntax import Module, first_name
from ..program.trees import position
from ..training.loss_regions import Region
from ..training.steps import Backward, StepCode, Update
from ..values.dataflow import dotted
from ..values.resolver import Resolver
from ..values.values import Made
from .autocast_edits import AutocastPlan, Precision
from .half_steps import HalfCode, half_code
from .half_values import HalfUse
from .not_scalable import NotScalableError
from .precision import PrecisionUse
from .unscalings import applying

_SCALER = "`GradScaler`"
_MAKERS = frozenset(
    {"torch.amp.GradScaler", "torch.amp.grad_scaler.GradScaler", "torch.cuda.amp.GradScaler"}
)


@dataclass(frozen=True)
class OwnScaling:
    """``half`` is a step as it is without its scaling: what its losses are before, and which optimizers step; ``scaler`` is code."""

    half: HalfCode
    scaler: str


def beyond_scaling(uses: Iterable[PrecisionUse]) -> PrecisionUse | None:
    """The first of ``uses``, all there is about precision in a script, that is not of a ``GradScaler``."""
    return next((use for use in uses if use.what != _SCALER), None)


def with_own_scaler(
    resolver: Resolver, half: HalfCode, uses: Iterable[PrecisionUse], options: Options
) -> OwnScaling | Fact | str:
    """How the scaler that ``uses`` are of serves the step ``half``, or why that stays in float32."""
    if half.float16_obstacles:
        return half.float16_obstacles[0]
    if options.amp is AmpDtype.BF16:
        return "the scaler is for float16, and `--amp bf16` asks for another type"
    if network_device(resolver, half.networks).kind is DeviceKind.CPU:
        return "the network is not seen to be moved to a GPU"
    assert isinstance(half.code, StepCode)
    try:
        step, scaler = _without_scaling(resolver, half.code, _sole_scaler(resolver, uses))
    except NotScalableError as error:
        return error.fact
    unscaled = half_code(resolver, step)
    return OwnScaling(unscaled, scaler) if isinstance(unscaled, HalfCode) else unscaled


def edits_beside_scaler(
    resolver: Resolver,
    scalings: Sequence[OwnScaling],
    restored: tuple[HalfUse, ...],
    options: Options,
) -> tuple[FileEdit, ...]:
    """The edits that put ``scalings`` under autocast in float16; ``restored`` are the values that must be float32 again."""
    device = network_device(resolver, [n for scaling in scalings for n in scaling.half.networks])
    found: dict[FileEdit, None] = {}
    for scaling in scalings:
        switch = f"{scaling.scaler}.is_enabled()"
        plan = AutocastPlan(
            resolver,
            (scaling.half,),
            Precision.FLOAT16,
            None,
            device,
            restored,
            options.torch_version,
            switch,
        )
        found |= dict.fromkeys(plan.edits())
    return tuple(found)


def _sole_scaler(resolver: Resolver, uses: Iterable[PrecisionUse]) -> CallFact:
    """The one call among ``uses`` that makes a scaler, for CUDA; raises ``NotScalableError`` where it is not the only one."""
    made = [(use, use.module.parents.get(use.node)) for use in uses]
    calls = [(u, c) for u, c in made if isinstance(c, ast.Call) and c.func is u.node]
    first = calls[0][0] if calls else made[0][0]
    if len(calls) != 1:
        why = "which of several scalers is whose is not known" if calls else "no scaler is made"
        raise NotScalableError(first.module, first.node, why)
    module, call = first.module, calls[0][1]
    names = resolver.names(call.func, module)
    device = call_argument(call, "device", 0) if "torch.cuda.amp.GradScaler" not in names else None
    is_other = isinstance(device, ast.Constant) and device.value != "cuda"
    if not names or not names <= _MAKERS or is_other:
        raise NotScalableError(module, call, "the scaler is none for CUDA")
    return CallFact(module, call, "GradScaler")


def _without_scaling(resolver: Resolver, step: StepCode, made: CallFact) -> tuple[StepCode, str]:
    """``step`` without what the scaler that ``made`` makes does in it, and the code of that scaler.

    Raises ``NotScalableError`` where it serves the step only in part.
    """
    scaler = _Scaler(resolver, made)
    backwards = tuple(scaler.unscaled(backward) for backward in step.backwards)
    own = {backward.node for backward in step.backwards}
    for call in step.loop.backwards:
        if call.node not in own and not resolver.callees(call.node, call.module):
            raise NotScalableError(call.module, call.node, f"`{call.excerpt}` is not scaled")
    if not step.loop.optimizer_steps:
        raise NotScalableError(step.module, step.node, "no optimizer step is seen")
    for call in step.loop.optimizer_steps:
        if not scaler.runs(call.node, call.module, "step") or len(call.node.args) != 1:
            why = f"`{call.excerpt}` does not step through the scaler"
            raise NotScalableError(call.module, call.node, why)
    seen = step.nodes(resolver)
    if not any(scaler.runs(reached.node, reached.module, "update") for reached in seen):
        raise NotScalableError(step.module, step.node, "the scaler is never updated")
    updates = tuple(replace(update, optimizer=update.node.args[0]) for update in step.updates)
    found = replace(step, backwards=backwards, updates=updates)
    _all_unscaled(scaler, found)
    name = scaler.spelled(backwards[0])
    for region in _covered(step):
        if not _is_seen(name, backwards[0], region):
            why = "the scaler is not known where the forward pass runs"
            raise NotScalableError(region.module, region.first, why)
    return found, step.module.code(name)


class _Scaler:
    """The scaler that one call makes, wherever it is handed."""

    def __init__(self, resolver: Resolver, made: CallFact) -> None:
        self._resolver, self._made = resolver, made

    def runs(self, node: ast.AST, module: Module, method: str) -> bool:
        """Whether ``node`` calls ``method`` of this scaler, for certain."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return False
        if node.func.attr != method:
            return False
        values = self._resolver.values(node.func.value, module)
        return bool(values) and all(
            isinstance(value, Made) and value.call is self._made.node for value in values
        )

    def unscaled(self, backward: Backward) -> Backward:
        """``backward`` of its loss as that is before it is scaled."""
        module, scaled = backward.module, backward.loss
        if not self.runs(scaled, module, "scale"):
            why = f"`{backward.excerpt}` is not scaled, or not always by the same scaler"
            raise NotScalableError(module, backward.node, why)
        assert isinstance(scaled, ast.Call)
        loss = scaled.args[0] if len(scaled.args) == 1 else None
        is_named = isinstance(loss, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        if loss is None or (backward.computes and not is_named):
            raise NotScalableError(module, scaled, "the loss is computed where it is scaled")
        return replace(backward, loss=loss)

    def spelled(self, backward: Backward) -> ast.expr:
        """The scaler as it is called where ``backward``, of an unscaled loss, is."""
        scaled = backward.module.parents[backward.loss]
        assert isinstance(scaled, ast.Call)
        assert isinstance(scaled.func, ast.Attribute)
        return scaled.func.value


def _all_unscaled(scaler: _Scaler, step: StepCode) -> None:
    """That what looks at gradients before an optimizer steps sees them unscaled."""
    module = step.module
    calls = [n for n in lexical_nodes(step.body) if scaler.runs(n, module, "unscale_")]
    for reader in step.gradient_readers:
        starts = [position(b.statement) for b in step.backwards]
        since = max((at for at in starts if at < position(reader)), default=(0, 0))
        around = {reader, *module.ancestors(reader)}
        for update in applying(step, reader):
            if not any(_unscales(call, update, module, around, since, reader) for call in calls):
                why = "gradients are looked at before they are unscaled"
                raise NotScalableError(module, reader, why)


def _unscales(
    call: ast.AST,
    update: Update,
    module: Module,
    around: set[ast.AST],
    since: tuple[int, int],
    reader: ast.stmt,
) -> bool:
    """Whether ``call`` unscales the gradients of ``update`` after ``since`` wherever ``reader`` then looks at them."""
    assert isinstance(call, ast.Call)
    statement = module.statement(call)
    return (
        [ast.dump(argument) for argument in call.args] == [ast.dump(update.optimizer)]
        and since < position(statement) < position(reader)
        and not around.isdisjoint(module.block(statement))
    )


def _covered(step: StepCode) -> Iterator[Region]:
    """Where ``step`` runs its networks."""
    yield from step.regions
    for backward in step.backwards:
        if backward.computes:
            yield Region(step.module, backward.statement, backward.statement)


def _is_seen(scaler: ast.expr, backward: Backward, region: Region) -> bool:
    """Whether ``scaler``, as it is called at ``backward``, is the same and set already where ``region`` begins."""
    module, root = backward.module, first_name(scaler)
    if region.module is not module or root is None or dotted(scaler) is None:
        return False
    function = module.function(region.first)
    there = module.scope(root).lookup(root.id)
    here = module.scope(region.first).lookup(root.id)
    if function is not module.function(backward.node) or there is None or here is None:
        return False
    if there[0] is not here[0]:
        return False
    stored = [binding.node for binding in here[1] if not isinstance(binding.source, Parameter)]
    if isinstance(scaler, ast.Attribute):
        kept = module.attributes_of(scaler.attr)
        stored += [a for a in kept if isinstance(a.ctx, ast.Store) and dotted(a) == dotted(scaler)]
    around = {region.first, *module.ancestors(region.first)}
    return all(
        module.function(node) is not function
        or (
            position(module.statement(node)) < position(region.first)
            and not around.isdisjoint(module.block(module.statement(node)))
        )
        for node in stored
    )
