"""Whether what a loss is compared with comes with the batch, one target per sample, or is made up in the step."""

from __future__ import annotations

import ast

from ..calls.reach import lexical_nodes
from ..calls.signatures import call_argument
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.unpacking import assigned_parts

_CONVERSIONS = frozenset(
    (
        "to cuda cpu long float int half double bool type type_as view view_as reshape squeeze unsqueeze flatten "
        "contiguous clone detach"
    ).split()
)


class BatchTargets:
    """The variables of a loop that hold parts of its batch, for each sample as the dataset gives it.

    ``weighted`` says that a mean may also be one in which the samples weigh differently.
    """

    weighted = False

    def __init__(self, resolver: Resolver, loop: ast.For, module: Module) -> None:
        self._resolver, self._loop, self._module = resolver, loop, module
        self._names = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
        for statement in loop.body:
            self._follow(statement)

    def has_target(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call``, of a loss in the loop, takes a target that is part of the batch."""
        target = call_argument(call, "target", 1)
        inside = module is self._module and self._loop in module.ancestors(call)
        return inside and target is not None and self._is_part(target)

    def _follow(self, statement: ast.stmt) -> None:
        stored = {
            n.id
            for n in lexical_nodes([statement])
            if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
        }
        assigned: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            assigned = assigned_parts(statement.targets[0], statement.value)
        kept = {
            target.id
            for target, value in assigned
            if isinstance(target, ast.Name) and self._is_part(value)
        }
        self._names = (self._names - stored) | kept

    def _is_part(self, value: ast.expr) -> bool:
        match value:
            case ast.Name(id=name):
                return name in self._names
            case ast.Attribute(value=owner):
                return self._is_part(owner)
            case ast.Subscript(value=owner, slice=index):
                return self._is_part(owner) and not any(
                    isinstance(n, ast.Name | ast.Call) for n in walk(index)
                )
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _CONVERSIONS:
                return self._is_part(owner)
            case ast.Call(func=function, args=[argument], keywords=[]):
                names = self._resolver.names(function, self._module)
                return names == frozenset({"torch.autograd.Variable"}) and self._is_part(argument)
            case _:
                return False


class AnyTargets(BatchTargets):
    """For whom it is all one where targets come from, and how samples weigh, as long as a loss is a mean."""

    weighted = True

    def __init__(self) -> None:
        """There is nothing to follow."""

    def has_target(self, call: ast.Call, module: Module) -> bool:
        return True
