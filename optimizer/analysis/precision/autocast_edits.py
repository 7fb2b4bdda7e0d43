"""The edits that put training steps and evaluations under autocast, with loss scaling where float16 needs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from ...rewriting.edits import (
    AddParameter,
    FileEdit,
    InsertAfter,
    InsertArgument,
    InsertBefore,
    ReplaceExpression,
    SetArgument,
)
from ..devices.network_device import NetworkDevice, uses_cuda
from ..editing.bound_names import may_read_global
from ..editing.companions import sees_attribute
from ..editing.references import quoted, reference
from ..program.syntax import FunctionNode, Module, is_docstring
from ..program.trees import walk
from ..training.loss_regions import Region
from ..training.steps import Backward, StepCode
from ..values.resolver import Resolver
from .half_steps import HalfCode
from .half_values import HalfUse
from .loss_scaling import LossScaling
from .region_edits import float_again, in_context

_NATIVE_CHECK_SINCE = (2, 5)
"""From here on ``is_bf16_supported`` can leave out emulation and answers on machines without CUDA
(https://github.com/pytorch/pytorch/issues/132303)."""


class Precision(Enum):
    """What runs under autocast; ``PORTABLE`` is bfloat16 where the GPU has it, else float16 with a scaler."""

    BFLOAT16 = "bfloat16"
    NATIVE_BFLOAT16 = "bfloat16 where the GPU has it"
    FLOAT16 = "float16 with a GradScaler"
    PORTABLE = "bfloat16 where the GPU has it, else float16 with a GradScaler"


@dataclass(frozen=True, eq=False)
class AutocastPlan:
    """What is to be done: ``codes`` in ``precision``, on ``device`` (None for the CPU).

    ``scaling`` is there when ``precision`` involves float16 and the script does not scale its losses itself, ``switch``
    (code) where something of the script's own says whether to. ``restored`` are the values that must be float32 again.
    """

    resolver: Resolver
    codes: tuple[HalfCode, ...]
    precision: Precision
    scaling: LossScaling | None
    device: NetworkDevice | None
    restored: tuple[HalfUse, ...]
    torch_version: tuple[int, int]
    switch: str | None = None

    def edits(self) -> tuple[FileEdit, ...]:
        found: dict[FileEdit, None] = {}
        for edit in self._all_edits():
            found[edit] = None
        return tuple(found)

    def _all_edits(self) -> Iterator[FileEdit]:
        if self.scaling is not None:
            yield from self._scaler(self.scaling)
        for half in self.codes:
            for region in half.code.regions:
                yield from self._region(region)
            if isinstance(half.code, StepCode):
                yield from self._step(half.code)
        for use in self.restored:
            yield float_again(use)

    # Regions

    def _region(self, region: Region) -> Iterator[FileEdit]:
        module = region.module
        before, header = self._header(module, region.first)
        yield from before
        yield in_context(region, header.removeprefix("with ").removesuffix(":"))

    def _header(self, module: Module, at: ast.stmt) -> tuple[list[FileEdit], str]:
        """The ``with`` line for a region that begins with ``at``, and the edits that make its names known."""
        autocast = reference(module, "torch.autocast")
        edits = [*autocast.edits]
        if self.device is None:
            dtype = reference(module, "torch.bfloat16").code
            return edits, f"with {autocast.code}({quoted(module, 'cpu')}, dtype={dtype}):"
        arguments = [quoted(module, "cuda")]
        if self.precision is Precision.NATIVE_BFLOAT16:
            switch, known = self._at_hand(
                module, at, self._switch_name, self._is_native(module, at)
            )
            arguments.append(f"dtype={reference(module, 'torch.bfloat16').code}")
            return [*edits, *known], self._with(autocast.code, [*arguments, f"enabled={switch}"])
        if self.precision is Precision.PORTABLE:
            dtype, known = self._at_hand(module, at, self._dtype_name, self._dtype(module, at))
            edits += known
        else:
            dtype = reference(module, f"torch.{self.precision.name.lower()}").code
        arguments.append(f"dtype={dtype}")
        condition = self.switch or uses_cuda(self.resolver, self.device, at, module)
        if condition is not None:
            arguments.append(f"enabled={condition}")
        return edits, self._with(autocast.code, arguments)

    def _with(self, autocast: str, arguments: list[str]) -> str:
        return f"with {autocast}({', '.join(arguments)}):"

    def _dtype(self, module: Module, at: ast.stmt) -> str:
        bfloat16, float16 = (reference(module, f"torch.{n}").code for n in ("bfloat16", "float16"))
        scaler = self._scaler_parameter(module.function(at))
        if scaler is not None:
            return f"{float16} if {scaler}.is_enabled() else {bfloat16}"
        return f"{bfloat16} if {self._is_native(module, at)} else {float16}"

    def _is_native(self, module: Module, at: ast.stmt) -> str:
        """The test whether the GPU computes in bfloat16 itself; emulation is slower than float32."""
        if self.torch_version >= _NATIVE_CHECK_SINCE:
            check = reference(module, "torch.cuda.is_bf16_supported").code
            return f"{check}(including_emulation=False)"
        test = f"{reference(module, 'torch.cuda.get_device_capability').code}() >= (8, 0)"
        assert self.device is not None
        condition = uses_cuda(self.resolver, self.device, at, module)
        return test if condition is None else f"{_operand(condition)} and {test}"

    # Names

    @cached_property
    def _taken(self) -> frozenset[str]:
        """Every name the project binds somewhere."""
        return frozenset(
            name
            for module in self.resolver.project.modules
            for scope in module.scopes.by_node.values()
            for name in scope.bindings
        )

    def _free(self, *candidates: str) -> str:
        return next(name for name in candidates if name not in self._taken)

    @cached_property
    def _scaler_name(self) -> str:
        return self._free("scaler", "grad_scaler", "loss_scaler", "amp_scaler")

    @cached_property
    def _dtype_name(self) -> str:
        return self._free("amp_dtype", "autocast_dtype", "half_dtype", "mixed_precision_dtype")

    @cached_property
    def _switch_name(self) -> str:
        return self._free("use_bf16", "use_bfloat16", "native_bf16", "has_native_bf16")

    def _at_hand(
        self, module: Module, at: ast.stmt, name: str, value: str
    ) -> tuple[str, list[FileEdit]]:
        """Code that stands for ``value`` at ``at``: a name that is known there, else one set ahead of the loop."""
        if self.scaling is not None and self._dtype_is_seen and self._sees_companion(module, at):
            return self.scaling.companion.prefix + name, []
        anchor = self._ahead_of(module, at)
        if anchor is None:
            return f"({value})" if " if " in value else value, []
        if self._is_set_above(module, anchor):
            return name, []
        return name, [FileEdit(module.path, InsertBefore(module.span(anchor), f"{name} = {value}"))]

    def _ahead_of(self, module: Module, at: ast.stmt) -> ast.stmt | None:
        """The statement above which a name for the region at ``at`` can be set; None where it would be inside of it."""
        function = module.function(at)
        around = module.loops(at)
        anchor = _outside_contexts(module, around[-1]) if around else None
        if anchor is None:
            body = function.body if function is not None else module.tree.body
            anchor = next((s for s in body if not is_docstring(s)), at)
            if anchor is at or at in set(walk(anchor)):
                return self._above_several(module, at)
        return anchor

    def _above_several(self, module: Module, at: ast.stmt) -> ast.stmt | None:
        """The first statement of the block of ``at``, where several regions stand below it."""
        block = module.block(at)
        regions = [
            region.first
            for half in self.codes
            for region in half.code.regions
            if region.module is module and region.first in block
        ]
        return block[0] if len(regions) > 1 and block[0] not in regions else None

    def _is_set_above(self, module: Module, anchor: ast.stmt) -> bool:
        """Whether the name is set for another region further up in the same block."""
        block = module.block(anchor)
        others = (
            self._ahead_of(module, region.first)
            for half in self.codes
            for region in half.code.regions
            if region.module is module
        )
        return any(other in block[: block.index(anchor)] for other in others)

    def _sees_companion(self, module: Module, at: ast.stmt) -> bool:
        """Whether what is made beside the optimizer has been made, and is seen, where ``at`` runs."""
        assert self.scaling is not None
        companion = self.scaling.companion
        if companion.prefix:
            return sees_attribute(self.resolver, companion, at, module)
        if companion.module is not module:
            return False
        maker = module.function(companion.statement)
        user = module.function(at)
        if user is maker:
            return at.lineno > companion.statement.lineno
        if maker is not None:
            return maker in set(module.ancestors(at))
        if user is not None and not may_read_global(module, user, companion.statement):
            return False
        return user is not None and all(
            site.module is not module
            or module.function(site.call) is not None
            or site.call.lineno > companion.statement.lineno
            for site in self.resolver.call_sites(user)
        )

    # Steps

    def _step(self, step: StepCode) -> Iterator[FileEdit]:
        scaler = self._scaler_in(step) if self.scaling is not None else None
        for backward in step.backwards:
            loss = step.module.code(backward.loss)
            if backward.computes:
                name = self._free("loss", "step_loss", "batch_loss", "scaled_loss")
                yield from self._hoisted(step, backward, f"{name} = {loss}")
                loss = name
            if scaler is not None or backward.computes:
                scaled = f"{scaler}.scale({loss})" if scaler is not None else loss
                yield FileEdit(step.path, _backward(step.module, backward, scaled))
        if scaler is None:
            return
        for update in step.updates:
            code = f"{self._scaler_of(update.optimizer)}.step({step.module.code(update.optimizer)})"
            yield FileEdit(step.path, ReplaceExpression(update.span, code))

    def _hoisted(self, step: StepCode, backward: Backward, code: str) -> Iterator[FileEdit]:
        """A loss without a name gets one, under autocast."""
        module = step.module
        block = module.block(backward.statement)
        index = block.index(backward.statement)
        region = next((r for r in step.regions if index and r.last is block[index - 1]), None)
        if region is not None:
            yield FileEdit(step.path, InsertAfter(module.span(region.last), code))
            return
        before, header = self._header(module, backward.statement)
        yield from before
        target = module.span(backward.statement)
        yield FileEdit(step.path, InsertBefore(target, f"{header}\n    {code}"))

    # The scaler

    def _scaler_of(self, optimizer: ast.expr) -> str:
        """The scaler beside ``optimizer``, by the name it has there."""
        while isinstance(optimizer, ast.Subscript):
            optimizer = optimizer.value
        assert self.scaling is not None
        is_attribute = isinstance(optimizer, ast.Attribute)
        return (self.scaling.companion.prefix if is_attribute else "") + self._scaler_name

    def _scaler_in(self, step: StepCode) -> str:
        assert self.scaling is not None
        if step.updates:
            return self._scaler_of(step.updates[0].optimizer)
        return self.scaling.companion.prefix + self._scaler_name

    def _scaler(self, scaling: LossScaling) -> Iterator[FileEdit]:
        companion = scaling.companion
        module, below = companion.module, companion.statement
        yield FileEdit(module.path, InsertAfter(module.span(below), self._made(module, below)))
        yield from reference(module, "torch").edits
        for new in companion.parameters:
            span = new.module.span(new.function)
            yield FileEdit(new.module.path, AddParameter(span, self._scaler_name, new.after))
        for new in companion.arguments:
            value = self._scaler_of(new.after)
            span = new.module.span(new.call)
            if new.keyword:
                edit = SetArgument(span, self._scaler_name, value)
            else:
                edit = InsertArgument(span, new.call.args.index(new.after) + 1, value)
            yield FileEdit(new.module.path, edit)
        for unscaling in scaling.unscalings:
            optimizer = unscaling.module.code(unscaling.optimizer)
            code = f"{self._scaler_of(unscaling.optimizer)}.unscale_({optimizer})"
            yield FileEdit(unscaling.path, InsertBefore(unscaling.span, code))
        for update in scaling.updates:
            code = f"{self._scaler_of(update.optimizer)}.update()"
            insert = InsertBefore if update.above else InsertAfter
            yield FileEdit(update.path, insert(update.span, code))

    def _scaler_parameter(self, function: FunctionNode | None) -> str | None:
        """The scaler's name in a function that is handed it."""
        if self.scaling is None or self.precision is not Precision.PORTABLE:
            return None
        handed = {new.function for new in self.scaling.companion.parameters}
        return self._scaler_name if function in handed else None

    def _made(self, module: Module, below: ast.stmt) -> str:
        """The statements that make the scaler, and the type when it is chosen at run time."""
        assert self.scaling is not None
        assert self.device is not None
        prefix = self.scaling.companion.prefix
        lines: list[str] = []
        conditions: list[str] = []
        condition = uses_cuda(self.resolver, self.device, below, module)
        if condition is not None:
            conditions.append(_operand(condition))
        if self.precision is Precision.PORTABLE and self._dtype_is_seen:
            dtype = prefix + self._dtype_name
            lines.append(f"{dtype} = {self._dtype(module, below)}")
            conditions.append(f"{dtype} == {reference(module, 'torch.float16').code}")
        elif self.precision is Precision.PORTABLE:
            conditions.append(f"not {self._is_native(module, below)}")
            if self.torch_version < _NATIVE_CHECK_SINCE:
                capability = reference(module, "torch.cuda.get_device_capability").code
                conditions[-1] = f"{capability}() < (8, 0)"
        arguments = [f"enabled={' and '.join(conditions)}"] if conditions else []
        if self.torch_version >= (2, 3):
            arguments.insert(0, quoted(module, "cuda"))
            scaler = reference(module, "torch.amp.GradScaler").code
        else:
            scaler = reference(module, "torch.cuda.amp.GradScaler").code
        lines.append(f"{prefix}{self._scaler_name} = {scaler}({', '.join(arguments)})")
        return "\n".join(lines)

    @cached_property
    def _dtype_is_seen(self) -> bool:
        """Whether code under autocast sees a type chosen beside the optimizer."""
        regions = [(r.module, r.first) for half in self.codes for r in half.code.regions]
        computed = [
            (backward.module, backward.statement)
            for half in self.codes
            if isinstance(half.code, StepCode)
            for backward in half.code.backwards
            if backward.computes
        ]
        return any(self._sees_companion(module, at) for module, at in [*regions, *computed])


def _operand(condition: str) -> str:
    """``condition`` as an operand of ``and``."""
    tree = ast.parse(condition, mode="eval").body
    loose = isinstance(tree, ast.IfExp | ast.Lambda) or (
        isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.Or)
    )
    return f"({condition})" if loose else condition


def _outside_contexts(module: Module, statement: ast.stmt) -> ast.stmt:
    """``statement``, or the outermost ``with`` directly around it."""
    while isinstance(parent := module.parents[statement], ast.With):
        statement = parent
    return statement


def _backward(module: Module, backward: Backward, loss: str) -> ReplaceExpression:
    """The edit that backpropagates ``loss`` instead."""
    call = backward.node
    if call.args and call.args[0] is backward.loss:
        return ReplaceExpression(module.span(backward.loss), loss)
    if isinstance(backward.loss, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        return ReplaceExpression(module.span(backward.loss), loss)
    given = [module.code(argument) for argument in [*call.args, *call.keywords]]
    return ReplaceExpression(module.span(call), f"{loss}.backward({', '.join(given)})")
