"""Tensors that no loss hangs on, made for what a training shows: the fixed noise of which a GAN makes its pictures."""

from __future__ import annotations

import ast

from ..program.module_names import name_reads
from ..program.syntax import Module
from ..values.dataflow import Flow
from ..values.resolver import Resolver
from .steps import StepCode

_FACTORIES = frozenset(
    f"torch.{name}"
    for name in (
        "zeros",
        "ones",
        "randn",
        "rand",
        "empty",
        "full",
        "normal",
        "FloatTensor",
        "Tensor",
    )
)


class ShownTensors:
    """Answers for the tensors of one training step, whose size need not be that of a batch."""

    def __init__(self, resolver: Resolver, step: StepCode) -> None:
        self._resolver, self._step = resolver, step
        self._flow = Flow(step.module, tuple(step.body))

    def is_made_of(self, size: ast.expr, module: Module) -> bool:
        """Whether all that ``size`` does is to shape such a tensor."""
        if module is not self._step.module or self._step.callers:
            return False
        call = module.parents[size]
        while isinstance(call, ast.Tuple | ast.List | ast.keyword):
            call = module.parents[call]
        statement = module.statement(size)
        if not isinstance(call, ast.Call) or not isinstance(statement, ast.Assign):
            return False
        made, target = self._resolver.names(call.func, module), statement.targets[0]
        if not made or not made <= _FACTORIES or len(statement.targets) > 1:
            return False
        if not isinstance(target, ast.Name):
            return False
        reads = list(name_reads(target, module))
        return bool(reads) and all(self._is_shown(read, target) for read in reads)

    def _is_shown(self, read: ast.Name, target: ast.Name) -> bool:
        """Whether ``read`` has no part in a loss: in the step, or where the variable takes another form."""
        statement = self._step.module.statement(read)
        if statement in self._flow.statements:
            backpropagates = any(b.statement is statement for b in self._step.backwards)
            return not backpropagates and statement not in self._step.behind_losses
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]):
                return name == target.id  # `noise = noise.cuda()`
            case _:
                return False
